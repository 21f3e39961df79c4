"""A masked language model read as an energy of whole sequences.

    E_raw(y)   = − Σ_t f(y_t, h(y_\\t))                       Goyal 2021, §6.2.1: the logit of each token, itself hidden
    E_local(y) = − Σ_t log softmax(f(·, h(y_\\t)))[y_t]       §6.2.4: minus the pseudo-log-likelihood

Conventions: the logits are those of the output layer, its bias in and no softmax taken. E_raw depends on that: adding a
number c(y_\\t) to all logits of a position leaves the masked model as it is but changes E_raw. The softmax of E_local
runs over the network's whole vocabulary. Tokens that frame a sequence ([CLS] … [SEP]) are read but have no term.

A sequence of T tokens needs T masked copies. The copies of all sequences go through the network together; terms that
are known already (a proposal's masked pass gives that of the position it hid) are not computed again.

Use it     as the target of `samplers.metropolis_hastings`; E_local also as a pseudo-log-likelihood score.
Relations  `contracts.MaskedLanguageModel` supplies the logits: any ForMaskedLM, a conditional one, or a table.
"""

import torch
from torch import Tensor

from energylm.config.mcmc import LOCAL, RAW, MaskedEnergyKind
from energylm.contracts import MaskedLanguageModel
from energylm.errors import ConfigError
from energylm.numerics.categorical import log_sum_exp

LOGITS_AT_ONCE = 1 << 23  # 32 MB of float32


class MaskedLMEnergy:
    """`contracts.Energy`, and `samplers.chains.Target`. Energies are float64."""

    def __init__(self, model: MaskedLanguageModel, *, kind: MaskedEnergyKind = LOCAL) -> None:
        if kind not in (RAW, LOCAL):
            raise ConfigError(f"the energy of a masked model is {RAW!r} or {LOCAL!r}, came {kind!r}")
        self.model, self.kind = model, kind

    def energies(
        self,
        tokens_RT: Tensor,
        lengths_R: Tensor,
        *,
        source_R: Tensor | None = None,
        known_RT: Tensor | None = None,
    ) -> Tensor:
        """(R,) energies of right-padded sequences; `known_RT` as in `terms`."""
        return self.terms(tokens_RT, lengths_R, source_R=source_R, known_RT=known_RT).sum(1)

    def terms(
        self,
        tokens_RT: Tensor,
        lengths_R: Tensor,
        *,
        source_R: Tensor | None = None,
        known_RT: Tensor | None = None,
    ) -> Tensor:
        """(R, T) what each token adds to the energy, 0 past the end. `known_RT` holds terms that need not be computed,
        NaN elsewhere."""
        real_RT = torch.arange(tokens_RT.shape[1], device=tokens_RT.device) < lengths_R[:, None]
        unknown_RT = real_RT if known_RT is None else real_RT & known_RT.isnan()
        terms_RT = torch.zeros(tokens_RT.shape, dtype=torch.float64, device=tokens_RT.device)
        if known_RT is not None:
            terms_RT = torch.where(real_RT & ~unknown_RT, known_RT.double(), terms_RT)
        rows_N, places_N = unknown_RT.nonzero(as_tuple=True)
        at_once = max(1, LOGITS_AT_ONCE // self.model.vocabulary_size)
        for row_M, place_M in zip(rows_N.split(at_once), places_N.split(at_once), strict=True):
            copies_MT = tokens_RT[row_M]
            hidden_MT = torch.arange(tokens_RT.shape[1], device=tokens_RT.device) == place_M[:, None]
            logits_MV = self.model.masked_logits(
                copies_MT, lengths_R[row_M], hidden_MT, source_R=None if source_R is None else source_R[row_M]
            )
            terms_RT[row_M, place_M] = self.terms_at(logits_MV, tokens_RT[row_M, place_M])
        return terms_RT

    def terms_at(self, logits_NV: Tensor, tokens_N: Tensor) -> Tensor:
        """(N,) what tokens add to the energy, given the logits at their positions with nothing else hidden."""
        chosen_N = logits_NV.gather(1, tokens_N[:, None])[:, 0].double()
        if self.kind == RAW:
            return -chosen_N
        return log_sum_exp(logits_NV, logits_NV.amax(-1, keepdim=True)) - chosen_N
