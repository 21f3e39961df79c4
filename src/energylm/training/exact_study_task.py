"""Training a BiLSTM-context energy on short sequences by one of the objectives of the exact studies.

    likelihood              E(y) + log Z, Z of all sequences of y's length                        Goyal 2021, §6.2.2
    pseudo_likelihood       − Σ_t log p(y_t | y_\\t) with the conditionals of E
    masked                  − Σ_t log p_mlm(y_t | y_\\t): the masked-language-model objective, every token hidden once
    projection              Σ_t KL(p_mlm(· | y_\\t) ‖ p(· | y_\\t)), p_mlm that of a fixed teacher
    projection_and_pseudo   the sum of projection and pseudo_likelihood

Losses are nats of a sequence. Where all sequences of a length can be held, one pass over them serves a batch of any
size (`Universe` of `models.context_energies`); longer languages branch each sequence (`Replacements`).

Relations  `objectives` has the formulas, `verbs.chains.exact_study_cells` the languages and the cells.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from energylm.config.models import (
    LIKELIHOOD,
    MASKED,
    PROJECTION,
    PROJECTION_AND_PSEUDO,
    PSEUDO_LIKELIHOOD,
    StudyObjective,
)
from energylm.data.small_languages import Sequences
from energylm.models.bilstm_context import BiLSTMContext
from energylm.models.context_energies import Replacements, Universe, reading
from energylm.objectives.sequence_likelihood import projection_kl, pseudo_nll, sequence_nll
from energylm.randomness import derive_seed, epoch_order
from energylm.training.task import Batch, Share, Sums

VALIDATED_AT_ONCE = 256

_TERMS: dict[StudyObjective, tuple[StudyObjective, ...]] = {
    LIKELIHOOD: (LIKELIHOOD,),
    PSEUDO_LIKELIHOOD: (PSEUDO_LIKELIHOOD,),
    MASKED: (MASKED,),
    PROJECTION: (PROJECTION,),
    PROJECTION_AND_PSEUDO: (PROJECTION, PSEUDO_LIKELIHOOD),
}


class ExactStudyTask:
    """A `training.task.Task`."""

    def __init__(
        self,
        network: BiLSTMContext,
        train: Sequences,
        valid: Sequences,
        *,
        objective: StudyObjective,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        teacher: BiLSTMContext | None = None,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.train, self.valid, self.teacher = network, train, valid, teacher
        self.seed, self.global_batch = seed, global_batch
        self.terms = _TERMS[objective]
        self.save = save_model
        self.loss_weights: Mapping[str, float] = dict.fromkeys(self.terms, 1.0)
        self.fingerprint = {"objective": objective, "sequences": len(train), **(fingerprint or {})}
        if (PROJECTION in self.terms) != (teacher is not None):
            raise ValueError(f"the objective {objective} and a teacher do not go together")

    def batch(self, step: int, rows: range) -> Batch:
        positions = (step - 1) * self.global_batch + np.arange(rows.start, rows.stop, dtype=np.int64)
        _, items = epoch_order(positions, len(self.train), seed=derive_seed(self.seed, "sequence order"))
        chosen = self.train[torch.from_numpy(items)]
        return {"tokens_BT": chosen.tokens_NT, "lengths_B": chosen.lengths_N}

    def counts(self, batch: Batch) -> dict[str, float]:
        return dict.fromkeys(self.terms, float(len(batch["lengths_B"])))

    def tokens(self, batch: Batch) -> int:
        return int(batch["lengths_B"].sum())

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        return Sums(self._sums(Sequences(batch["tokens_BT"], batch["lengths_B"])))

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Nats of a sequence under the objective itself: no other number is known to whoever trains by it."""
        own = self.valid[torch.arange(share.rank, len(self.valid), share.world)]
        return {"loss": (float(sum(self._sums(own, at_once=VALIDATED_AT_ONCE).values())), float(len(own)))}

    def _sums(self, sequences: Sequences, *, at_once: int | None = None) -> dict[str, Tensor]:
        """The summed loss of each term."""
        pieces: dict[str, list[Tensor]] = {term: [] for term in self.terms}
        readings = {length: reading(self.model, length) for length in sequences.lengths_N.unique().tolist()}
        for _, tokens_GT in sequences.by_length(at_once=at_once):
            for term, loss_G in self._losses(readings[tokens_GT.shape[1]], tokens_GT).items():
                pieces[term].append(loss_G.sum())
        return {term: torch.stack(sums).sum() for term, sums in pieces.items()}

    def _losses(self, read: Universe | Replacements, tokens_GT: Tensor) -> dict[str, Tensor]:
        """(G,) of each term."""
        if self.terms == (MASKED,):
            return {MASKED: pseudo_nll(-read.cloze_logits(tokens_GT), tokens_GT)}
        if self.terms == (LIKELIHOOD,):
            if not isinstance(read, Universe):
                raise ValueError(
                    f"{self.model.vocabulary_size}^{tokens_GT.shape[1]} sequences are too many to sum over"
                )
            return {LIKELIHOOD: sequence_nll(read.energies(tokens_GT), read.log_partition)}
        losses: dict[str, Tensor] = {}
        replaced_GTV = read.replaced_energies(tokens_GT)
        if PROJECTION in self.terms and self.teacher is not None:
            with torch.no_grad():
                # The engine moves the model alone; a teacher of this size reads where it lies.
                logits_GTV = self.teacher.cloze_logits(tokens_GT.to(self.teacher.device))
                teacher_GTV = logits_GTV.to(replaced_GTV.device)
            losses[PROJECTION] = projection_kl(teacher_GTV, replaced_GTV)
        if PSEUDO_LIKELIHOOD in self.terms:
            losses[PSEUDO_LIKELIHOOD] = pseudo_nll(replaced_GTV, tokens_GT)
        return losses
