"""Base, joint, certified and baseline perplexity of one set of windows: `energylm perplexity`.

All models score the same tokens, in blocks of windows (`measuring`). With an output folder finished blocks are kept
there, so that a killed run goes on where it stopped, and a report is written beside the numbers.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from energylm.config.sampling import CONFIDENCE, ParticleRuns
from energylm.config.vocabulary import WINDOW_PREFIX_TOKENS, WINDOW_TOKENS, N
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Short, Verb

if TYPE_CHECKING:
    from energylm.data.windows import SourceWindows
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.joint.measuring import PerplexityResult

WHY_UNTRUNCATED = (
    "perplexity needs samples of the whole language model: a truncated or tempered proposal estimates the sum over "
    "what it can draw, not log Z; leave the option out (`energylm generate` takes it)"
)


OF_SMC = ("sampler", "particles")


class Perplexity(Verb):
    """Measure a language model, its joint model with an energy, and baselines on the same tokens, in one table.

    The joint model's perplexity is an interval, beside it the certified perplexity of what `energylm generate` writes.
    Windows are measured in blocks; with --output finished blocks are kept, and a killed run goes on when run again.
    """

    examples = (
        "energylm perplexity runs/tiny/model corpora/sotu --energy runs/energy/model -n 1000 --contexts 50",
        "energylm perplexity smollm2-135m book.txt --energy runs/bit/model --by-samples --output out/perplexity",
        "energylm perplexity runs/base/model corpora/news --energy runs/unit/model --by-position",
        "energylm perplexity runs/base/model corpora/news --energy runs/unit/model --length 384 --sampler smc -n 512",
    )
    refused = dict.fromkeys(("top_k", "top_p", "temperature"), WHY_UNTRUNCATED)
    writes = "optional"
    blocks = True
    version = 2  # since 2, models of windows within documents write no special tokens
    apart_from: ClassVar[frozenset[str]] = frozenset({"block_contexts"})
    shortcuts: ClassVar = {
        "runs": "particles.runs",
        "block_tokens": "particles.block_tokens",
        "lookahead": "particles.lookahead",
    }

    language_model: Annotated[str, Positional("LM")] = Field(
        description="The base: a model folder, a GGUF file, a known model or a hub name."
    )
    source: Annotated[str, Positional("FILE|CORPUS")] = Field(description="A corpus folder, or a text or JSONL file.")
    energy: str | None = Field(
        None,
        description="An energy folder (`energylm energy train`), a score as KIND:TEXT, or a YAML file of several; none "
        "measures the language models only.",
    )
    split: Literal["train", "valid", "test"] = Field("test", description="Split of a corpus folder.")
    field: str = Field("text", description="JSONL field that holds the text.")
    length: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of a window.")
    documents: Literal["packed", "within"] = Field(
        "within",
        description="Whether windows of a corpus may cross documents (packed) or not; within one there is no special "
        "token, so the models write none.",
    )
    prefix_tokens: int = Field(
        WINDOW_PREFIX_TOKENS, ge=0, description="Tokens of a window that are given and not scored."
    )
    contexts: int = Field(100, ge=1, description="Windows, chosen at random from a corpus, evenly from a file.")
    n: Annotated[int, Short("-n")] = Field(N, ge=2, description="Samples a window for log Z; the paper draws 100,000.")
    sampler: Literal["resample", "smc"] = Field(
        "resample",
        description="Where the samples for log Z come from: independent draws, as the resampling of `generate` has "
        "them; or the particles of runs of smc, for long windows. Its other samplers estimate no Z of their own.",
    )
    particles: ParticleRuns = Field(ParticleRuns(), description="Of smc.")
    ralm: str | None = Field(None, description="A residual auto-regressive model on the same base, to compare.")
    balm: str | None = Field(None, description="A bigger auto-regressive model, to compare.")
    by_position: bool = Field(
        False, description="Also the perplexity at each position, the last one exactly (eq. 5, fig. 1)."
    )
    position_samples: int = Field(1000, ge=2, description="Samples a window and position; the paper draws 20,000.")
    by_samples: bool = Field(False, description="Also the interval from fewer samples (fig. 2, left).")
    confidence: float = Field(
        CONFIDENCE, gt=0, lt=1, description="Of the upper end of the certified row, over samples, for these windows."
    )
    seed: int = Field(0, ge=0, description="Of the windows and the samples.")
    block_contexts: int = Field(
        8, ge=1, description="Windows of one block: what a worker takes at a time, and a killed run does again at most."
    )

    @model_validator(mode="after")
    def _check_span(self) -> Self:
        if self.prefix_tokens >= self.length:
            raise ValueError(
                f"prefix_tokens {self.prefix_tokens} leaves nothing of length {self.length} to score; lower it"
            )
        if self.energy is None and (self.by_position or self.by_samples):
            raise ValueError("by_position and by_samples measure a joint model; give an energy")
        if self.sampler == "smc" and (self.by_position or self.by_samples):
            raise ValueError("by_position and by_samples go by independent draws; leave them out, or sampler smc")
        return self

    @property
    def plain_text(self) -> bool:
        """Whether no window holds a special token (files have none), so that models are measured without them."""
        return self.documents == "within"

    @property
    def windows(self) -> "SourceWindows":
        from energylm.data.windows import SourceWindows

        return SourceWindows(self.source, self.length, self.contexts, self.seed, self.split, self.field, self.documents)

    def step_content(self) -> Mapping[str, Any]:
        """What smc is asked for counts where smc is asked for."""
        content = dict(super().step_content())
        return content if self.sampler == "smc" else {name: content[name] for name in content if name not in OF_SMC}

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate, locate_energy

        for model in filter(None, (self.language_model, self.ralm, self.balm)):
            locate(model)
        if self.energy is not None:
            locate_energy(self.energy)
        joint = f", the joint model with {self.energy} from {self.n:,} samples a window" if self.energy else ""
        return (
            f"would measure {self.language_model}{joint} on tokens {self.prefix_tokens + 1} to {self.length} of "
            f"{self.windows.check()}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "PerplexityResult":
        from energylm.verbs.joint.measuring import measure

        self.check(job)
        return measure(self, job)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.joint.costs import count_perplexity

        return count_perplexity(self, around)
