"""A masked language model read as an energy of whole sequences.

    E_raw(y)   = − Σ_t f(y_t, h(y_\\t))                       Goyal 2021, §6.2.1: the logit of each token, itself hidden
    E_local(y) = − Σ_t log softmax(f(·, h(y_\\t)))[y_t]       §6.2.4: minus the pseudo-log-likelihood

Conventions: the logits are those of the output layer, its bias in and no softmax taken. E_raw depends on that: adding a
number c(y_\\t) to all logits of a position leaves the masked model as it is but changes E_raw. The softmax of E_local
runs over the network's whole vocabulary. Tokens that frame a sequence ([CLS] … [SEP]) are read but have no term.

A sequence of T tokens needs T masked copies. The copies of all sequences go through the network together; terms that
are known already (a proposal's masked pass gives that of the position it hid) are not computed again.

Use it     as the target of `samplers.metropolis_hastings`; E_local also as a pseudo-log-likelihood score.
Relations  `contracts.MaskedModel` supplies the logits: any ForMaskedLM, a conditional one, or a table;
           `estimators.pseudo_log_likelihood` makes and packs the copies.
"""

import torch
from torch import Tensor

from energylm.config.sampling import LOCAL, RAW, MaskedEnergyKind
from energylm.contracts import MaskedModel
from energylm.errors import ConfigError
from energylm.estimators.pseudo_log_likelihood import hidden_token_terms, log_probs_at


class MaskedLMEnergy:
    """`contracts.SequenceEnergy`, and `samplers.chains.Target`. Energies are float64."""

    def __init__(self, model: MaskedModel, *, kind: MaskedEnergyKind = LOCAL) -> None:
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
        terms_RT = hidden_token_terms(
            self.model, tokens_RT, lengths_R, term=self.terms_at, wanted_BT=unknown_RT, source_B=source_R
        ).to(tokens_RT.device)
        return terms_RT if known_RT is None else torch.where(real_RT & ~unknown_RT, known_RT.double(), terms_RT)

    def terms_at(self, logits_NV: Tensor, tokens_N: Tensor) -> Tensor:
        """(N,) what tokens add to the energy, given the logits at their positions with nothing else hidden."""
        if self.kind == RAW:
            return -logits_NV.gather(1, tokens_N[:, None])[:, 0].double()
        return -log_probs_at(logits_NV, tokens_N)
