"""Candidates of another server, chosen among by our energy: what `energylm serve --upstream` answers with.

    w = exp(−E)                  target ∝ q · exp(−E)         q is how the upstream draws: nothing more need be known
    w = P_LM / q · exp(−E)       target ∝ P_LM · exp(−E)      with a language model of ours, where q is told

The second needs the upstream's log-probabilities, and that these are the proposal's own: they are told before
temperature and truncation, so both must be off. Where that fails the first is used, and the answer says so. P_LM reads
the text by its own tokenizer, one of the ways to write it; the end token is counted where the upstream stopped by
itself.

Relations  `serve_completions` draws the candidates here; `samplers.resampling` holds weights and choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.joint_texts import CutText, JointTexts, lm_token_log_probs
from energylm.bundles.language_model import LanguageModel
from energylm.estimators.log_partition import TRUSTED_ESS
from energylm.numerics.importance import effective_sample_size, normalized_log_weights
from energylm.pipelines.serve_completions import Candidate, Choice, Completion, cut_at_stop
from energylm.randomness import derive_seed, row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.resampling import Weights, importance_log_weights, resample


@dataclass(frozen=True)
class Proposal:
    """A candidate as the upstream told it."""

    text: str
    has_ended: bool  # by itself, not by a limit
    log_prob: float | None  # of the whole text; None where it is not told
    tokens: int  # as far as is known


@dataclass(frozen=True)
class ProposalPool:
    """The candidates of one text."""

    prompt: str
    proposals: tuple[Proposal, ...]
    weights: Weights
    is_untruncated: bool  # whether the upstream drew at temperature 1 from all tokens
    stop: tuple[str, ...]
    seed: int
    index: int


class ProposalChooser:
    def __init__(self, energy: EnergyModel, lm: LanguageModel | None = None) -> None:
        self.energy, self.lm = energy, lm
        self._texts = None if lm is None else JointTexts(lm)

    def choose(self, pools: Sequence[ProposalPool]) -> list[Completion]:
        """One text of each pool; the energies of all pools are read together."""
        texts = [pool.prompt + proposal.text for pool in pools for proposal in pool.proposals]
        energies = self.energy.text_energies(texts).double().cpu().split([len(pool.proposals) for pool in pools])
        return [self._chosen(pool, energy_N) for pool, energy_N in zip(pools, energies, strict=True)]

    def _chosen(self, pool: ProposalPool, energy_N: Tensor) -> Completion:
        reason = self._why_not_corrected(pool)
        log_weight_N = -energy_N
        if pool.weights == "corrected" and reason is None:
            proposal_N = torch.tensor([one.log_prob for one in pool.proposals], dtype=torch.float64)
            log_weight_N = importance_log_weights(energy_N, self._log_prob(pool), proposal_N, weights="corrected")
        index_1 = torch.tensor([pool.index])
        keys_1 = row_keys(derive_seed(pool.seed, "resampling"), index_1, torch.zeros_like(index_1))
        kept = int(resample(log_weight_N[None], RowChoices(keys_1))[0, 0])
        proposal, ess = pool.proposals[kept], float(effective_sample_size(log_weight_N))
        text = cut_at_stop(proposal.text, pool.stop)
        has_ended = proposal.has_ended or len(text) < len(proposal.text)
        warnings = [reason] if pool.weights == "corrected" and reason is not None else []
        if len(energy_N) > 1 and ess < TRUSTED_ESS:
            warnings.append(f"the {len(energy_N)} candidates are worth {ess:.1f} independent ones; ask for more")
        choice = Choice(
            energy=float(energy_N[kept]),
            log_weight=float(log_weight_N[kept]),
            ess=ess,
            largest_share=float(normalized_log_weights(log_weight_N).exp().max()),
            warning="; ".join(warnings) or None,
            candidates=lambda: [
                Candidate(one.text, float(energy), float(log_weight))
                for one, energy, log_weight in zip(pool.proposals, energy_N, log_weight_N, strict=True)
            ],
        )
        return Completion(text, proposal.tokens, "stop" if has_ended else "length", None, choice)

    def _why_not_corrected(self, pool: ProposalPool) -> str | None:
        """Why P_LM / q is not known, in words; None if it is."""
        energy_alone = "weights are exp(−energy) alone, and the text's law is the upstream's under the energy"
        if self.lm is None:
            return f"there is no language model here to correct towards: {energy_alone}"
        if not pool.is_untruncated:
            return f"the upstream drew at a temperature or truncated, and tells nothing of that: {energy_alone}"
        if any(one.log_prob is None for one in pool.proposals):
            return f"the upstream tells no log-probabilities: {energy_alone}"
        return None

    def _log_prob(self, pool: ProposalPool) -> Tensor:
        """(N,) log P_LM of each candidate after the prompt."""
        assert self.lm is not None and self._texts is not None
        (context,) = self._texts.contexts([pool.prompt])
        cuts = []
        for one in pool.proposals:
            ids = self.lm.encode(one.text)
            ended = self.lm.codec.ended(ids) if one.has_ended and self.lm.eos_token_id is not None else ids
            cuts.append(CutText(context, ended, None))
        return lm_token_log_probs(self.lm, cuts).sum(1)
