"""What a joint model draws, as records: texts with the weighted candidates of each choice, and next-token tables."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from energylm.estimators.log_partition import TRUSTED_ESS, is_weak, shown_ess
from energylm.numerics.importance import effective_sample_size, normalized_log_weights
from energylm.records import LOCAL, Record
from energylm.tables import Table


@dataclass(frozen=True, repr=False)
class CandidatePool(Record):
    """n weighted candidates to continue one context, and which of them were kept."""

    tokens: Tensor  # (N, T) int64, 0 past the end
    lengths: Tensor  # (N,) the end-of-sequence token counted
    log_prob: Tensor  # (N,) under the language model
    proposal_log_prob: Tensor  # (N,) under the truncated proposal
    energy: Tensor  # (N,)
    log_weight: Tensor  # (N,)
    kept: list[int]  # the first has algorithm 1's law; the rest are what else the pool offers

    computed = ("ess", "largest_share")

    def candidate(self, number: int) -> list[int]:
        return self.tokens[number, : self.lengths[number]].tolist()

    @property
    def ess(self) -> float:
        return float(effective_sample_size(self.log_weight))

    @property
    def largest_share(self) -> float:
        return float(normalized_log_weights(self.log_weight).exp().max())


@dataclass(frozen=True, repr=False)
class JointSample(Record):
    """Continuations of one context. What is asked of the candidates is answered for the last chunk."""

    texts: list[str]  # one a draw, without the context
    tokens: list[list[int]]
    pools: list[CandidatePool]  # one a chunk
    new_text: Callable[[list[int]], str] = field(repr=False, metadata=LOCAL)  # candidates of the last chunk as text
    caution: str | None = None

    computed = ("ess", "largest_share", "warning")

    @property
    def text(self) -> str:
        """The first draw: the one that has the law of algorithm 1."""
        return self.texts[0]

    @property
    def candidates(self) -> list[str]:
        """The text of every candidate."""
        return [self.new_text(self.pools[-1].candidate(i)) for i in range(len(self.pools[-1].lengths))]

    @property
    def energies(self) -> Tensor:
        return self.pools[-1].energy

    @property
    def log_weights(self) -> Tensor:
        return self.pools[-1].log_weight

    @property
    def ess(self) -> float:
        """Of the chunk where it is smallest."""
        return min(pool.ess for pool in self.pools)

    @property
    def largest_share(self) -> float:
        return max(pool.largest_share for pool in self.pools)

    @property
    def warning(self) -> str | None:
        weak, n = None, len(self.log_weights)
        if is_weak(self.ess):
            what = (
                f"{n:,} candidates are few to choose from"
                if self.ess > n / 2
                else f"the {n:,} candidates are worth {shown_ess(self.ess)} independent ones: a few decide"
            )
            law = "the text's law lies between the language model's and the joint model's"
            weak = f"{what}, and {law}; draw more candidates"
        return "; ".join(filter(None, (self.caution, weak))) or None


@dataclass(frozen=True)
class NextToken:
    token: int
    text: str
    probability: float  # among those that are kept


@dataclass(frozen=True, repr=False)
class NextTokenTable(Record):
    """The likeliest next tokens of the base and of the joint model, each list renormalised."""

    base: list[NextToken]
    joint: list[NextToken]
    base_mass: float  # what the base gives to all candidates looked at; the joint's rest is not seen
    ess: list[float]  # of the completions of each candidate
    n: int
    caution: str | None = None

    computed = ("median_ess", "warning")

    @property
    def median_ess(self) -> float:
        return statistics.median(self.ess)

    @property
    def warning(self) -> str | None:
        weak = sum(map(is_weak, self.ess))
        few = (
            f"for {weak} of {len(self.ess)} candidates the {self.n:,} completions are worth fewer than {TRUSTED_ESS:g} "
            "independent ones; draw more"
        )
        return "; ".join(filter(None, (self.caution, few if weak else None))) or None

    def rows(self, *, show: int = 5) -> list[dict[str, Any]]:
        """The first `show` of each model, one JSON-able object a row."""
        return [
            {"model": model, "rank": rank, "token": entry.token, "text": entry.text, "probability": entry.probability}
            for model, entries in (("base", self.base), ("joint", self.joint))
            for rank, entry in enumerate(entries[:show])
        ]

    @property
    def table(self) -> Table:
        """The likeliest next tokens of both models, as in the paper's table 3."""
        convention = (
            f"probabilities among the {len(self.base)} tokens kept, of candidates that hold {self.base_mass:.3g} of "
            f"the base's probability; {self.n:,} completions each"
        )
        rows = [[row["model"], row["rank"], row["text"], row["probability"]] for row in self.rows()]
        return Table(["model", "rank", "token", "probability"], rows, convention=convention)


@dataclass(frozen=True, repr=False)
class AutoregressiveSample(Record):
    """A text drawn token by token, with the table that each token came from."""

    text: str
    tokens: list[int]
    tables: list[NextTokenTable]
    caution: str | None = None

    computed = ("warning",)

    @property
    def warning(self) -> str | None:
        weak = next((table.warning for table in self.tables if table.warning), None)
        return "; ".join(filter(None, (self.caution, weak))) or None
