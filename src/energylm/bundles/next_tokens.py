"""The joint model's next token, by marginalising the future of the base model's likeliest candidates.

    P(v | x_<t) ∝ P_LM(v | x_<t) · A(x_<t, v)     A = E_{x' ~ P_LM(· | x_<t, v)} [exp(−E(x_<t, v, x'))], v a candidate
                                                                                Deng et al. 2020, eq. 5 and app. A.1
The paper looks at 128 candidates with 10,000 completions each, keeps the 10 likeliest and renormalises. A candidate
that ends the sequence (the last position, or EOS) has no future: its A is exact. Drawing a text so costs candidates · n
completions a token; it shows what the joint model prefers, `residual_sampling` is the way to write.
"""

import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from energylm import contracts
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.residual_measures import estimate_log_partition
from energylm.bundles.weighted_draws import WeightedDraws
from energylm.config.sampling import NextTokens
from energylm.estimators.log_partition import TRUSTED_ESS, is_weak
from energylm.numerics.truncation import top_k
from energylm.randomness import derive_seed, row_keys
from energylm.records import Record
from energylm.samplers.choices import RowChoices
from energylm.tables import Table


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


@dataclass(frozen=True)
class TokenRequest:
    """What both ways of looking at tokens ask for."""

    options: NextTokens
    max_new_tokens: int  # still to come
    stop_at_eos: bool
    seed: int

    def end_of(self, lm: contracts.CausalModel) -> int | None:
        """The token after which nothing comes."""
        return lm.eos_token_id if self.stop_at_eos else None


def next_token_table(
    draws: WeightedDraws,
    texts: JointTexts,
    context: Context,
    request: TokenRequest,
) -> NextTokenTable:
    """The next of `max_new_tokens` tokens that are still to come."""
    options = request.options
    with torch.no_grad():
        _, logits_1V = draws.lm.decoder().prefill([context.lm])
    base_1K, ids_1K = top_k(logits_1V.double().cpu().log_softmax(-1), options.candidates)
    base_K, ids = base_1K[0], ids_1K[0].tolist()
    log_future_K, ess_K = _futures(draws, context, ids, request)

    def likeliest(log_prob_K: Tensor) -> list[NextToken]:
        values, ranked = log_prob_K.topk(min(options.keep, len(ids)))
        tokens = [ids[index] for index in ranked.tolist()]
        new_texts = texts.new_texts(context, [[token] for token in tokens])
        return list(map(NextToken, tokens, new_texts, values.softmax(0).tolist()))

    return NextTokenTable(
        base=likeliest(base_K),
        joint=likeliest(base_K + log_future_K),
        base_mass=float(base_K.exp().sum()),
        ess=ess_K.tolist(),
        n=options.n,
    )


def sample_by_tokens(
    draws: WeightedDraws, texts: JointTexts, context: Context, request: TokenRequest
) -> AutoregressiveSample:
    """Top-k auto-regressive sampling: each token from the joint model's kept candidates."""
    keys = row_keys(derive_seed(request.seed, "next token"), torch.zeros(1), torch.zeros(1))
    choices, end = RowChoices(keys), request.end_of(draws.lm)
    tokens: list[int] = []
    tables: list[NextTokenTable] = []
    while len(tokens) < request.max_new_tokens and (end is None or tokens[-1:] != [end]):
        of_token = replace(
            request,
            max_new_tokens=request.max_new_tokens - len(tokens),
            seed=derive_seed(request.seed, "completions", len(tokens)),
        )
        table = next_token_table(draws, texts, context.extended(tokens), of_token)
        probability_1K = torch.tensor([[entry.probability for entry in table.joint]], dtype=torch.float64)
        tokens.append(table.joint[int(choices.categorical(probability_1K.log()))].token)
        tables.append(table)
    return AutoregressiveSample(texts.new_text(context, tokens), tokens, tables)


def _futures(draws: WeightedDraws, context: Context, ids: list[int], request: TokenRequest) -> tuple[Tensor, Tensor]:
    """(K,) log A of every candidate and (K,) what its completions are worth; n where A is exact."""
    n, remaining, end = request.options.n, request.max_new_tokens - 1, request.end_of(draws.lm)
    tokens_1K1 = torch.tensor(ids)[None, :, None]
    ends_K = torch.tensor([remaining == 0 or token == end for token in ids])
    log_future_K = torch.zeros(len(ids), dtype=torch.float64)
    ess_K = torch.full_like(log_future_K, n)
    if ends_K.any():
        ending = tokens_1K1[:, ends_K]
        log_future_K[ends_K] = -draws.energies([context], ending, torch.ones(ending.shape[:2], dtype=torch.int64))[0]
    if not ends_K.all():
        going_on = [context.extended([token]) for token, ends in zip(ids, ends_K.tolist(), strict=True) if not ends]
        estimate = estimate_log_partition(
            draws, going_on, n=n, max_new_tokens=remaining, eos_token_id=end, seed=request.seed
        )
        log_future_K[~ends_K], ess_K[~ends_K] = estimate.lower, estimate.ess
    return log_future_K, ess_K
