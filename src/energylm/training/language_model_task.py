"""Training language models on windows of a corpus: causal ones, masked ones, and two towers.

    LanguageModelTask   L = − Σ_{t ≥ 2} log P(x_t | x_<t)                   the first token of a window is given
    MaskedLMTask        L = − Σ_{t chosen} log P(x_t | corrupted window)    every visit of a window masks it anew
    TwoTowerTask        L = − Σ_t log q(x_t | x_∖t)                         every token from all the others, in one pass

Losses are nats, divided by the number of predicted tokens. The order of windows is a new computed shuffle in every
epoch, a pure function of (seed, position): resuming seeks at once, and any cut of a batch into micro-batches or
processes sees the same windows. What is masked in row r of step s is a pure function of (seed, s, r), in validation of
(seed, window). A right-to-left model reads the same windows reversed. The output layer of a masked language model runs
over the chosen positions only, a seventh of the work of running it over all.

Relations  `objectives.cross_entropy` is the loss, `objectives.masking` the masking; `contrast_task` builds on the same
           windows; `verbs.lm.working` builds corpus, network and task for users.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from energylm.config.models import LEFT_TO_RIGHT, Direction
from energylm.config.pretrain import MaskingConfig
from energylm.models.cloze_presets import MaskedLMNetwork, token_logits
from energylm.models.contexts import takes
from energylm.models.two_tower import TwoTowerForCloze
from energylm.objectives.cross_entropy import IGNORED, count_targets, cross_entropy_sum
from energylm.objectives.masking import mask_tokens, masking_uniforms
from energylm.randomness import derive_seed, epoch_order
from energylm.training.task import Batch, Share, Sums, validated


class WindowSource(Protocol):
    """What the task needs of `data.windows.Windows`."""

    def __len__(self) -> int: ...

    def gather(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(B, T) token ids of the windows `indices`."""
        ...


class WindowOptions(TypedDict, total=False):
    """What every task over windows takes; `save_model(network, folder)` writes the network as its user wants it."""

    seed: Required[int]
    global_batch: Required[int]
    save_model: Required[Callable[[nn.Module, Path], None]]
    max_valid_windows: int | None
    valid_batch: int


class LanguageModelTask:
    """A `training.task.Task`; what differs between its kinds is how windows are prepared and what is lost on them."""

    loss_weights: Mapping[str, float] = {"loss": 1.0}

    def __init__(
        self,
        network: nn.Module,
        train_windows: WindowSource,
        valid_windows: WindowSource | None = None,
        *,
        seed: int,
        global_batch: int,
        save_model: Callable[[nn.Module, Path], None],
        direction: Direction = LEFT_TO_RIGHT,
        max_valid_windows: int | None = None,
        valid_batch: int = 32,
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.direction = network, direction
        self.train_windows, self.valid_windows = train_windows, valid_windows
        self.seed, self.global_batch = seed, global_batch
        self.max_valid_windows, self.valid_batch = max_valid_windows, valid_batch
        self.fingerprint = {"direction": direction, "windows": len(train_windows), **(fingerprint or {})}
        self.save = save_model
        # Keys and values of past positions are of no use in training; not every network knows the switch.
        self._forward_options = {"use_cache": False} if takes(network, "use_cache") else {}

    def batch(self, step: int, rows: range) -> Batch:
        positions = (step - 1) * self.global_batch + np.arange(rows.start, rows.stop, dtype=np.int64)
        tokens_BT = self._read(self.train_windows, self.window_order(positions))
        return self._prepared(tokens_BT, "train", step, rows_B=torch.arange(rows.start, rows.stop))

    def window_order(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which window is read at each position of the endless sequence of epochs."""
        return epoch_order(positions, len(self.train_windows), seed=derive_seed(self.seed, "window order"))[1]

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": batch["tokens_BT"][:, 1:].numel()}

    def tokens(self, batch: Batch) -> int:
        return batch["tokens_BT"].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        tokens_BT = batch["tokens_BT"]
        logits_BTV = model(input_ids=tokens_BT[:, :-1], **self._forward_options).logits
        return Sums({"loss": cross_entropy_sum(logits_BTV, tokens_BT[:, 1:])})

    @property
    def validated_windows(self) -> NDArray[np.int64]:
        """All validation windows, or an evenly spread selection of `max_valid_windows`."""
        size = 0 if self.valid_windows is None else len(self.valid_windows)
        wanted = size if self.max_valid_windows is None else min(size, self.max_valid_windows)
        return np.arange(wanted, dtype=np.int64) * size // max(wanted, 1)

    def validate(self, model: nn.Module, share: Share) -> dict[str, tuple[float, float]]:
        """Losses per predicted token, and the metrics of training, over this process's share of the windows."""
        return {} if self.valid_windows is None else validated(self, model, self._batches(self.valid_windows, share))

    def _batches(self, windows: WindowSource, share: Share) -> Iterator[Batch]:
        chosen = self.validated_windows
        for start in range(share.rank * self.valid_batch, len(chosen), share.world * self.valid_batch):
            indices = chosen[start : start + self.valid_batch]
            yield self._prepared(self._read(windows, indices), "validation", rows_B=torch.from_numpy(indices))

    def _read(self, windows: WindowSource, indices: NDArray[np.int64]) -> Tensor:
        tokens_BT = torch.from_numpy(windows.gather(indices))
        return tokens_BT if self.direction == LEFT_TO_RIGHT else tokens_BT.flip(1)

    def _prepared(self, tokens_BT: Tensor, *names: str | int, rows_B: Tensor) -> Batch:
        """What a network reads of these windows; what is random in it depends on the seed, `names` and `rows_B`."""
        return {"tokens_BT": tokens_BT}


class MaskedLMTask(LanguageModelTask):
    """A `training.task.Task` for networks of `models.cloze_presets`. `ordinary_V` marks the tokens that are text."""

    def __init__(
        self,
        network: MaskedLMNetwork,
        train_windows: WindowSource,
        valid_windows: WindowSource | None = None,
        *,
        masking: MaskingConfig,
        mask_token_id: int,
        ordinary_V: Tensor,
        fingerprint: Mapping[str, Any] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        facts = {"masking": masking.model_dump(), **(fingerprint or {})}
        super().__init__(network, train_windows, valid_windows, fingerprint=facts, **options)
        self.masking, self.mask_token_id, self.ordinary_V = masking, mask_token_id, ordinary_V

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": count_targets(batch["targets_BT"])}

    def tokens(self, batch: Batch) -> int:
        return batch["inputs_BT"].numel()

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        chosen_BT = batch["targets_BT"] != IGNORED
        targets_M = batch["targets_BT"][chosen_BT]
        network = cast(MaskedLMNetwork, model)  # the one it was made with
        hidden_BTD = network.base_model(input_ids=batch["inputs_BT"]).last_hidden_state
        logits_MV = token_logits(network, hidden_BTD[chosen_BT])
        correct = (logits_MV.argmax(-1) == targets_M).sum()
        return Sums({"loss": cross_entropy_sum(logits_MV, targets_M)}, {"accuracy": (correct, chosen_BT.sum())})

    def _prepared(self, tokens_BT: Tensor, *names: str | int, rows_B: Tensor) -> Batch:
        inputs_BT, targets_BT = mask_tokens(
            tokens_BT,
            masking_uniforms(self.seed, *names, rows_B=rows_B, length=tokens_BT.shape[1]),
            ordinary_V=self.ordinary_V,
            mask_token_id=self.mask_token_id,
            **self.masking.model_dump(),
        )
        return {"inputs_BT": inputs_BT, "targets_BT": targets_BT}


class TwoTowerTask(LanguageModelTask):
    """A `training.task.Task`. `ordinary_V` marks the tokens that are text: only these are predicted."""

    def __init__(
        self,
        network: TwoTowerForCloze,
        train_windows: WindowSource,
        valid_windows: WindowSource | None = None,
        *,
        ordinary_V: Tensor,
        fingerprint: Mapping[str, Any] | None = None,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(network, train_windows, valid_windows, fingerprint=fingerprint, **options)
        self.ordinary_V = ordinary_V

    def counts(self, batch: Batch) -> dict[str, float]:
        return {"loss": count_targets(self._targets(batch["tokens_BT"]))}

    def loss(self, model: nn.Module, batch: Batch) -> Sums:
        targets_BT = self._targets(batch["tokens_BT"])
        logits_BTV = model(batch["tokens_BT"]).logits
        correct, count = (logits_BTV.detach().argmax(-1) == targets_BT).sum(), (targets_BT != IGNORED).sum()
        return Sums({"loss": cross_entropy_sum(logits_BTV, targets_BT)}, {"accuracy": (correct, count)})

    def _targets(self, tokens_BT: Tensor) -> Tensor:
        return tokens_BT.masked_fill(~self.ordinary_V.to(tokens_BT.device)[tokens_BT], IGNORED)
