"""A group of texts whose chains travel in one batch: first states, epochs, what is kept of them, and resuming."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.config.sampling import LOCAL
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError
from energylm.files import atomic_file
from energylm.progress import Progress, say
from energylm.randomness import derive_seed, row_keys
from energylm.samplers.chains import ChainState
from energylm.samplers.choices import ChainChoices
from energylm.samplers.degenerate_gibbs import DegenerateGibbs
from energylm.samplers.epochs import run_epochs
from energylm.samplers.mask_predict import MaskPredict
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.verbs.chains.mcmc import MCMC
from energylm.verbs.chains.mcmc_report import TextSample
from energylm.verbs.chains.mcmc_start import Inputs, Start

REFILLS = 100  # attempts to fill masks so that no forbidden phrase arises


@dataclass(frozen=True)
class History:
    """Every epoch of a group so far: N epochs, R rows. The first state, before any epoch, is not among them."""

    tokens_NRT: Tensor
    energy_NR: Tensor
    counts_N3R: Tensor  # proposed, accepted, novel
    decided_R: Tensor

    @property
    def epochs(self) -> int:
        return len(self.energy_NR)


class ChainGroup:
    """Texts whose chains travel in one batch; row r is chain r % chains of text r // chains of the group."""

    def __init__(
        self, verb: MCMC, model: MaskedLanguageModel, inputs: Inputs, starts: list[Start], file: Path | None
    ) -> None:
        self.verb, self.model, self.inputs, self.starts, self.file = verb, model, inputs, starts, file
        self.chains, self.device = verb.chains, model.network.device
        self.target = MaskedLMEnergy(model, kind=verb.energy)
        self.proposal = MaskedProposal(
            inputs.allowed_V.to(self.device),
            verb.proposal.truncation,
            verb.proposal.full_support_probability,
        )
        self.lengths_R = self._rows(torch.tensor([len(start.tokens_T) for start in starts]))
        self.free_RT = self._rows(pad_sequence([start.free_T for start in starts], batch_first=True))
        self.text_R = self._rows(torch.tensor([start.text for start in starts]))  # the source of a row has its number
        chain_R = torch.arange(self.chains, device=self.device).repeat(len(starts))
        self.keys_R = row_keys(derive_seed(verb.seed, "chains"), self.text_R, chain_R)

    def histories(self, bar: Progress) -> Iterator[History]:
        """The history after each epoch; those kept in the folder come first."""
        history = self._kept_history()
        for epochs in range(1, history.epochs + 1):
            bar.advance()
            yield replace(
                history,
                tokens_NRT=history.tokens_NRT[:epochs],
                energy_NR=history.energy_NR[:epochs],
                counts_N3R=history.counts_N3R[:epochs],
            )
        choices = ChainChoices(self.keys_R, decided_R=history.decided_R.to(self.device))
        if history.epochs:
            tokens_RT, energy_R = history.tokens_NRT[-1].to(self.device), history.energy_NR[-1].to(self.device)
            state = ChainState(tokens_RT, self.lengths_R, energy_R, self.text_R)
        else:
            state = self._first_state(choices)
        for epoch in run_epochs(
            self.target,
            self.proposal,
            state,
            self.free_RT,
            choices,
            config=self.verb,
            block_R=self._blocks(),
            constraint=self.inputs.constraint,
            first_epoch=history.epochs,
        ):
            counts_3R = torch.stack([epoch.info.proposed_R, epoch.info.accepted_R, epoch.info.novel_R]).cpu()
            history = History(
                torch.cat([history.tokens_NRT, epoch.state.tokens_RT[None].cpu()]),
                torch.cat([history.energy_NR, epoch.state.energy_R[None].cpu()]),
                torch.cat([history.counts_N3R, counts_3R[None]]),
                choices.decided_R.cpu(),
            )
            self._save(history)
            proposed, accepted, novel = counts_3R.sum(1).tolist()
            energy = float(epoch.state.energy_R.mean())
            bar.advance(note=f"energy {energy:.2f}, accepted {accepted / proposed:.0%}, new {novel / proposed:.0%}")
            yield history

    def samples(self, history: History, epochs: list[int] | None) -> list[TextSample]:
        """The texts of these epochs; without epochs, the one that `keep` names of each chain."""
        samples = []
        for row in range(len(self.lengths_R)):
            after = history.energy_NR[self.verb.burn_in :, row]
            kept = [history.epochs - 1 if self.verb.keep == "last" else self.verb.burn_in + int(after.argmin())]
            for epoch in kept if epochs is None else epochs:
                ids = history.tokens_NRT[epoch, row, : int(self.lengths_R[row])].tolist()
                samples.append(
                    TextSample(
                        text=self.starts[row // self.chains].text,
                        chain=row % self.chains,
                        epoch=epoch,
                        energy=float(history.energy_NR[epoch, row]),
                        sample=self.model.decode(ids),
                        tokens=ids,
                    )
                )
        return samples

    def local_energies(self, history: History) -> Tensor:
        """(N, R) the local energy of every epoch's texts, whichever energy the chains have."""
        if self.verb.energy == LOCAL:
            return history.energy_NR
        local = MaskedLMEnergy(self.model, kind=LOCAL)
        return torch.stack(
            [
                local.energies(tokens_RT.to(self.device), self.lengths_R, source_R=self.text_R).cpu()
                for tokens_RT in history.tokens_NRT
            ]
        )

    def decoded(self, history: History) -> list[list[str]]:
        """The text of every epoch and row."""
        lengths = self.lengths_R.tolist()
        return [
            [self.model.decode(tokens_T[:length]).strip() for tokens_T, length in zip(rows, lengths, strict=True)]
            for rows in history.tokens_NRT.tolist()
        ]

    def _blocks(self) -> Tensor | None:
        """The first block of each row where blocks are a part of the text."""
        share = self.verb.block_share
        return None if share is None else (self.free_RT.sum(1) * share).round().long().clamp(min=1)

    def _first_state(self, choices: ChainChoices) -> ChainState:
        """Masks filled in, and every constraint kept."""
        tokens_RT = self._rows(pad_sequence([start.tokens_T for start in self.starts], batch_first=True))
        masked_RT = (tokens_RT == self.model.mask_token_id) & self.free_RT
        gibbs = DegenerateGibbs(self.model, MaskedProposal(self.proposal.allowed_V))
        if self.verb.start == "greedy" and masked_RT.any():
            filled = MaskPredict(self.model, self.proposal.allowed_V).init(
                tokens_RT, self.lengths_R, free_RT=masked_RT, source_R=self.text_R
            )
            state = gibbs.init(filled.tokens_RT, self.lengths_R, source_R=self.text_R)
        else:
            start = gibbs.init(tokens_RT, self.lengths_R, source_R=self.text_R)
            state = gibbs.step(start, masked_RT, choices)[0]
        constraint = self.inputs.constraint
        if constraint is None:
            return state
        for _ in range(REFILLS):
            broken_R = ~constraint(state.tokens_RT, self.lengths_R)
            if not broken_R.any():
                return state
            state, _ = gibbs.step(state, masked_RT & broken_R[:, None], choices)
        raise ConfigError(
            f"no way was found to fill in text {self.starts[int(broken_R.nonzero()[0]) // self.chains].text + 1} "
            "without a forbidden phrase; forbid less, or give a text to start from"
        )

    def _rows(self, values: Tensor) -> Tensor:
        """One row a text → one row a chain, on the network's device."""
        return values.to(self.device).repeat_interleave(self.chains, dim=0)

    def _kept_history(self) -> History:
        if self.file is not None and (kept := _read_history(self.file)) is not None:
            return kept
        rows, longest = self.free_RT.shape
        return History(
            tokens_NRT=torch.zeros(0, rows, longest, dtype=torch.int64),
            energy_NR=torch.zeros(0, rows, dtype=torch.float64),
            counts_N3R=torch.zeros(0, 3, rows, dtype=torch.int64),
            decided_R=torch.zeros(rows, dtype=torch.int64),
        )

    def _save(self, history: History) -> None:
        if self.file is not None:
            tensors = {name: tensor.contiguous() for name, tensor in vars(history).items()}
            with atomic_file(self.file) as temporary:
                save_file(tensors, temporary, metadata={"sha256": _sha256(tensors)})


def _read_history(file: Path) -> History | None:
    """What an earlier run kept; None if there is nothing, or if it is damaged, which is said."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}
            recorded = (opened.metadata() or {}).get("sha256")
        if recorded == _sha256(tensors):
            return History(**tensors)
    except (SafetensorError, OSError):
        pass
    say(f"{file} is damaged: its chains are run again from the start")
    return None


def _sha256(tensors: Mapping[str, Tensor]) -> str:
    """Of names, shapes and values: a flipped byte would load in silence."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
