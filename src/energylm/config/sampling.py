"""How text is drawn: proposals, joint sampling of a language model and an energy, chains on a masked language model.

Defaults of chains are those of goyal2021, §6.5: 7 epochs of burn-in and 26 more, at least 5 chains, positions in random
order.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from energylm.config.base import Config
from energylm.config.vocabulary import MAX_NEW_TOKENS, N
from energylm.errors import ConfigError
from energylm.registry import JOINT_SAMPLERS, SAMPLERS, Named

CONFIDENCE = 0.95  # of statements about finite samples, unless another is asked for


class Truncation(Config):
    """The proposal q(x_t | x_<t): the model's distribution, tempered, cut to its likeliest tokens, renormalised."""

    top_k: int | None = Field(None, ge=1, description="Keep the k likeliest tokens (the papers use 10); none = all.")
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Keep the smallest set of likeliest tokens whose probability reaches p; none = all.",
    )
    temperature: float = Field(1.0, gt=0, description="Divide the logits by this before truncating.")

    @property
    def is_identity(self) -> bool:
        """Whether the proposal is the model itself."""
        return self.top_k is None and self.top_p in (None, 1.0) and self.temperature == 1.0


MOVES, LOOKAHEAD = 20, "energy"  # as Python's `sample` and `serve` have them, too

EssThreshold: Any = Field(
    0.5, ge=0, le=1, description="Of smc: particles are resampled when they are worth fewer than this part of n."
)
Lookahead: Any = Field(
    LOOKAHEAD,
    description="Of smc, by what unfinished texts are weighed: energy (as if they were whole), none, or the folder of "
    "a value that `energylm energy value` fitted.",
)


class JointSampling(Config):
    """Texts of a language model and an energy: by default algorithm 1 of Deng et al. 2020, which draws candidates from
    the language model and keeps one by its energy."""

    sampler: Annotated[str, Named(JOINT_SAMPLERS)] = Field(
        "resample",
        description="resample: one of n candidates by its weight; rejection: exact, needs a bound; quasi-rejection: "
        "exact up to a distance that is told; independence: a chain over the candidates; suffix: n chains that rewrite "
        "the ends of their texts; smc: n particles that are resampled on the way, for long texts.",
    )
    n: int = Field(N, ge=2, description="Candidates drawn for each text; the paper draws 10,000.")
    max_new_tokens: int = Field(MAX_NEW_TOKENS, ge=1, description="Tokens of a continuation (of each chunk) at most.")
    truncation: Truncation = Field(Truncation(), description="How the proposal is narrowed; the paper: top-k 10.")
    weights: Literal["paper", "corrected"] = Field(
        "paper",
        description="paper: exp(−E) over the truncated proposal; corrected: also divides the truncation out again, "
        "which costs more candidates the longer the text.",
    )
    draws: int = Field(
        1, ge=1, description="Different candidates kept of one pool; only the first has the law of algorithm 1."
    )
    chunks: int = Field(1, ge=1, description="Draw this many times in a row; each kept chunk becomes context.")
    context_tokens: int | None = Field(
        None, ge=1, description="Last tokens of the context that are read; none = all. Long texts need it."
    )
    stop_at_eos: bool = Field(True, description="Stop at the end-of-sequence token, where the model has one.")
    power: float = Field(
        1.0, gt=0, description="Sharpen the language model: its probability to this power, times exp(−E)."
    )
    bound: float | None = Field(
        None,
        description="Of rejection and quasi-rejection: the largest log-weight, which is −E0 for an energy that is "
        "never below E0; none: quasi-rejection chooses one from the first half of the candidates.",
    )
    distance: float = Field(
        0.05, gt=0, lt=1, description="Of quasi-rejection without a bound: total variation from the joint model's law."
    )
    block_tokens: int | None = Field(
        None,
        ge=1,
        description="suffix: texts grow by so many tokens, with moves after each block (none: whole texts); smc: "
        "particles are weighed every so many tokens (none: an eighth of the text).",
    )
    moves: int = Field(MOVES, ge=1, description="Of suffix: moves of each chain after each block.")
    ess_threshold: float = EssThreshold
    lookahead: str = Lookahead

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.draws > self.n:
            raise ValueError(f"draws {self.draws} of n {self.n} candidates: keep fewer or draw more candidates")
        if self.draws > 1 and self.chunks > 1:
            raise ValueError(
                f"draws {self.draws} with chunks {self.chunks}: a long text goes on from one choice; take draws 1 and "
                "several seeds instead"
            )
        if self.sampler == "rejection" and self.bound is None:
            raise ValueError(
                "sampler rejection needs a bound: the largest log-weight that any text can have (for an energy that is "
                "never below E0 that is −E0); give it, or take sampler quasi-rejection"
            )
        return self


class ParticleRuns(Config):
    """log Z by sequential Monte Carlo: the n samples of a context are the particles of several independent runs."""

    runs: int = Field(8, ge=2, description="Independent runs of smc, which share the n samples: the interval's basis.")
    block_tokens: int | None = Field(
        None, ge=1, description="Particles are weighed every so many tokens; none: an eighth of the text."
    )
    ess_threshold: float = EssThreshold
    lookahead: str = Lookahead

    def sampling(self, n: int) -> JointSampling:
        """Of one of the runs that share n samples."""
        if n // self.runs < 2:
            raise ConfigError(f"n {n} leaves fewer than 2 particles to each of {self.runs} runs; raise n or lower runs")
        own = {"block_tokens": self.block_tokens, "ess_threshold": self.ess_threshold, "lookahead": self.lookahead}
        return JointSampling(sampler="smc", n=n // self.runs, **own)


class NextTokens(Config):
    """Next-token probabilities of the joint model among the likeliest of the base (Deng et al. 2020, app. A.1)."""

    candidates: int = Field(128, ge=1, description="Likeliest tokens of the base model that are looked at.")
    n: int = Field(N, ge=2, description="Completions drawn for each candidate; the paper draws 10,000.")
    keep: int = Field(10, ge=1, description="Likeliest of them that are kept and renormalised.")


RAW: Final = "raw"
LOCAL: Final = "local"
MaskedEnergyKind = Literal["raw", "local"]

RANDOM = "random"
PositionOrder = Literal["sequential", "random"]

MASK_PREDICT = "mask-predict"

MASK = "mask"  # as an initial text: nothing but masks
UNMASKED = "unmasked"  # as fixed positions: all that are not masked in the initial text


class ProposalConfig(Config):
    """The masked conditionals that propose new tokens (goyal2021, §6.4.1)."""

    temperature: float = Field(1.0, description="Divide the logits by this; below 1 proposals are more peaked.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Propose from the nucleus that holds this probability; none = all tokens."
    )
    full_support: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Where top_p is set: part of the moves that propose from all tokens. Without them a token outside "
        "its nucleus is frozen, and the chain cannot reach every text.",
    )

    @field_validator("temperature")
    @classmethod
    def _is_positive(cls, temperature: float) -> float:
        if temperature <= 0:
            raise ValueError(
                "a proposal of temperature 0 always proposes the same token, so no exact sampler can use it; take a "
                "positive temperature, or sampler mask-predict"
            )
        return temperature

    @property
    def truncation(self) -> Truncation:
        return Truncation(temperature=self.temperature, top_p=self.top_p)

    @property
    def full_support_probability(self) -> float:
        """Of a move from all tokens; 0 where every move is one."""
        return self.full_support if self.top_p not in (None, 1.0) else 0.0


class AnnealingConfig(Config):
    """How blocks and target change with the epochs (goyal2021, §6.7.3 and §6.8)."""

    block: bool = Field(False, description="Shrink the block linearly to one position over the epochs.")
    target: float = Field(
        0.0, ge=0, lt=1, description="Lower the target's temperature by this each epoch; the paper: 0.02, 0.04, 0.06."
    )
    lowest: float = Field(0.1, gt=0, le=1, description="The target's temperature never falls below this.")

    def block_size(self, start: int, *, epoch: int, epochs: int) -> int:
        """Positions of a block in `epoch` 0 … epochs − 1."""
        if not self.block or epochs < 2:
            return start
        return max(1, round(start + (1 - start) * epoch / (epochs - 1)))

    def temperature(self, epoch: int) -> float:
        """Of the target exp(−E / temperature) in `epoch`."""
        return max(self.lowest, 1.0 - self.target * epoch)


class ChainsConfig(Config):
    """Everything about a run of chains but the model and the texts."""

    sampler: Annotated[str, Named(SAMPLERS)] = Field(
        "mh",
        description="mh: Metropolis-Hastings, exact; gibbs: degenerate Gibbs, which takes every proposal and has no "
        "known target; mask-predict: no sampler but a search for one likely text.",
    )
    energy: MaskedEnergyKind = Field(
        "local", description="local: minus the pseudo-log-likelihood; raw: minus the sum of the logits."
    )
    chains: int = Field(5, ge=1, description="Chains of each text.")
    epochs: int = Field(33, ge=1, description="Sweeps over all free positions.")
    burn_in: int = Field(7, ge=0, description="First epochs whose texts are not kept.")
    forced_epochs: int = Field(
        0, ge=0, description="First epochs of mh in which every proposal is taken; part of the burn-in."
    )
    order: PositionOrder = Field("random", description="Of the positions in an epoch, drawn without replacement.")
    block: int = Field(1, ge=1, description="Positions that are hidden and proposed together.")
    block_share: float | None = Field(
        None, gt=0, le=1, description="In place of block: this part of each text's free positions, one at least."
    )
    proposal: ProposalConfig = ProposalConfig()
    annealing: AnnealingConfig = AnnealingConfig()
    iterations: int = Field(10, ge=1, description="Of mask-predict, the first prediction included.")
    seed: int = Field(0, ge=0, description="The same seed gives the same texts.")

    @model_validator(mode="after")
    def _epochs_fit(self) -> Self:
        if self.sampler == MASK_PREDICT:
            return self
        if self.burn_in >= self.epochs:
            raise ValueError(f"burn_in {self.burn_in} leaves nothing of {self.epochs} epochs; run more epochs")
        if self.forced_epochs > self.burn_in:
            raise ValueError(
                f"forced_epochs {self.forced_epochs} exceed burn_in {self.burn_in}: texts of forced epochs do not have "
                "the target's law; raise burn_in"
            )
        return self
