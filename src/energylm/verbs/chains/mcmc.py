"""Sample or refine text with a masked language model read as an energy: `energylm mcmc` (goyal2021 ch. 6).

OUTPUT/mcmc.json            what was asked for; another request does not continue in the same folder
OUTPUT/chains-*.safetensors every state of a group of chains, written after each epoch: what a killed run continues from
OUTPUT/samples.jsonl        the texts that were kept
OUTPUT/report.html …        the diagnosis; its presence means finished

Relations  `mcmc_start` reads texts, `mcmc_run` runs chains, `mcmc_report` shows them.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from energylm.config.sampling import MASK_PREDICT, ChainsConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.chains.mcmc_report import MCMCRun

STDIN = "-"


class MCMC(ChainsConfig, Verb):
    """Sample or refine text with a masked language model read as an energy.

    Texts go to stdout as JSON Lines, each as soon as its epoch is done; energy and acceptance go to stderr, and at the
    end a verdict on whether the chains mixed. With --output a killed run continues in its folder.
    """

    examples = (
        "energylm mcmc runs/mlm/model --length 20 --chains 8 --block 4 --anneal-block",
        'energylm mcmc runs/mlm/model --init "The clerk [MASK] the [MASK]." --fixed unmasked --keep best',
        'energylm mcmc runs/mlm/model --init "A sentence to be refined." --anneal 0.02 --temperature 0.8 --keep last',
        "energylm mcmc runs/mlm/model --sampler mask-predict --length 8 --length 10 --length 12",
        'energylm mcmc runs/cmlm/model --source "Ein Hund rennt." --start greedy --anneal 0.02 --keep last',
        "energylm mcmc runs/cmlm/model --source-file test.de --reference-file test.en --sampler mask-predict "
        "--length-beam 5",
    )
    shortcuts: ClassVar = {
        "temperature": "proposal.temperature",
        "top_p": "proposal.top_p",
        "anneal": "annealing.target",
        "anneal_block": "annealing.block",
    }
    writes = "optional"

    model: Annotated[str, Positional("MODEL")] = Field(
        description="A masked language model: a folder (`energylm pretrain mlm`, with sources `pretrain cmlm`) or a "
        "hub name."
    )
    init: tuple[str, ...] = Field(
        (),
        description="A text to start from, with [MASK] for tokens to fill in. None, or mask: nothing but masks.",
    )
    input: str | None = Field(None, description="A file of such texts, one a line; - reads stdin.")
    source: tuple[str, ...] = Field((), description="A text to translate, for a conditional masked language model.")
    source_file: str | None = Field(None, description="A file of such texts, one a line; - reads stdin.")
    reference: tuple[str, ...] = Field((), description="A translation of each source: BLEU by epoch is reported.")
    reference_file: str | None = Field(None, description="A file of translations, line by line of --source-file.")
    longest_source: int | None = Field(
        None, ge=1, description="Leave out sources of more tokens (the paper: 20); none = refuse what is too long."
    )
    limit: int | None = Field(None, ge=1, description="The first so many sources of those that are left; none = all.")
    length: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="Tokens of a text that starts as mask; mask-predict tries several and keeps one. None: 20, or with "
        "a source what the model predicts.",
    )
    length_beam: int = Field(1, ge=1, description="Predicted lengths of each source that mask-predict tries.")
    fixed: str = Field(
        "", description="Positions that never change: 0-3,7 (tokens, from 0), or unmasked: all but [MASK] (infilling)."
    )
    require: tuple[str, ...] = Field((), description="A word or phrase that every text must contain.")
    forbid: tuple[str, ...] = Field((), description="A word or phrase that no text may contain.")
    start: Literal["dispersed", "greedy"] = Field(
        "dispersed",
        description="How masks are filled before the first epoch: each chain by a draw of its own, so that R-hat means "
        "something, or all by the likeliest tokens (the paper's warm start).",
    )
    keep: Literal["all", "last", "best"] = Field(
        "all", description="Texts written of each chain: of all epochs after burn-in, of the last, or of lowest energy."
    )
    local_by_epoch: bool = Field(
        False, description="Where the energy is raw: also compute the local one of every epoch, to compare runs by."
    )

    @field_validator("length")
    @classmethod
    def _positive(cls, length: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if length is not None and min(length) < 1:
            raise ValueError("a text has at least 1 token")
        return length

    @model_validator(mode="after")
    def _sources_and_references_fit(self) -> Self:
        if self.reference_file is not None and (self.source or self.source_file in (None, STDIN)):
            raise ValueError("reference_file goes with source_file, a file whose lines it translates; give both")
        if self.length_beam > 1 and (self.sampler != MASK_PREDICT or not self.has_sources):
            raise ValueError("length_beam is for mask-predict with sources: chains have one length; set it to 1")
        if (self.limit or self.longest_source) and not self.has_sources:
            raise ValueError("limit and longest_source choose among sources; give source_file, or leave them out")
        return self

    @property
    def has_sources(self) -> bool:
        return bool(self.source) or self.source_file is not None

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.chains.mcmc_run import describe

        return describe(self)

    def run(self, job: Job = DEFAULT_JOB) -> "MCMCRun":
        from energylm.verbs.chains.mcmc_run import run

        return run(self, job)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.chains.costs import count_mcmc

        return None if STDIN in (self.input, self.source_file) else count_mcmc(self, around)

    def shown(self, result: "MCMCRun") -> str:
        return ""  # each text was written as it came

    def remarks(self, result: "MCMCRun") -> list[str]:
        return result.lines()
