"""Chains of many texts: groups that travel in one batch, what is kept of them, resuming, traces and the report.

A chain's random numbers depend on the seed, its text and its number only, so groups, resuming and other texts leave it
as it is.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.model_folder import weights_sha256
from energylm.config.sampling import LOCAL, MASK_PREDICT, RAW
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError
from energylm.estimators.mixing import Trace, diagnose
from energylm.files import atomic_file, folder_lock, read_json, write_json, write_text
from energylm.jobs.job import Job
from energylm.progress import Progress, progress, say
from energylm.randomness import derive_seed, row_keys
from energylm.records import to_plain
from energylm.registry import SAMPLERS
from energylm.report.report import write_report
from energylm.samplers.chains import ChainState
from energylm.samplers.choices import ChainChoices
from energylm.samplers.degenerate_gibbs import DegenerateGibbs
from energylm.samplers.epochs import run_epochs
from energylm.samplers.mask_predict import MaskPredict, best_of_length_beam
from energylm.samplers.masked_proposal import MaskedProposal
from energylm.training.checkpoint import refuse_another_run
from energylm.verbs.chains.mcmc import MCMC
from energylm.verbs.chains.mcmc_report import ChainCurves, MCMCRun, TextSample, chain_curves, chains_sections, mean_bleu
from energylm.verbs.chains.mcmc_start import Inputs, Start, open_inputs

REQUEST, SAMPLES = "mcmc.json", "samples.jsonl"
GIVEN = {"init", "input", "source", "source_file", "reference", "reference_file", "longest_source", "limit"}
PROPOSAL_LOGITS = 1 << 25  # of one step of a group at most: 128 MB of float32
REFILLS = 100  # attempts to fill masks so that no forbidden phrase arises


def describe(verb: MCMC) -> str:
    """Load the model, check the texts and say what would be done. Writes nothing."""
    model, inputs = open_inputs(verb)
    if verb.sampler == MASK_PREDICT:
        return f"would fill in {len(inputs.starts)} texts by {verb.iterations} iterations of mask-predict"
    blocks = verb.block if verb.block_share is None else f"{verb.block_share:.0%} of the positions"
    lines = [
        f"would run {verb.chains} chains of {verb.epochs} epochs for each of {len(inputs.starts)} texts: sampler "
        f"{verb.sampler}, energy {verb.energy}, blocks of {blocks}, {verb.burn_in} epochs of burn-in"
    ]
    for start in inputs.starts:
        tokens = model.tokenizer.convert_ids_to_tokens(start.tokens_T.tolist())
        shown = [
            f"{position}:{token}{'' if free else '=fixed'}"
            for position, (token, free) in enumerate(zip(tokens, start.free_T, strict=True))
        ]
        lines.append(f"text {start.text + 1}, {int(start.free_T.sum())} free positions: {' '.join(shown)}")
    return "\n".join(lines)


def run(verb: MCMC, job: Job) -> MCMCRun:
    """Run the chains, or continue those in the job's folder. Every kept text is emitted as it comes."""
    model, inputs = open_inputs(verb)
    folder = job.output
    with nullcontext() if folder is None else folder_lock(folder):
        if folder is not None:
            _check_request(verb, inputs, folder)
        if verb.sampler == MASK_PREDICT:
            samples = _mask_predict(verb, model, inputs)
            _emit(samples, job)
            curves = _curves_of_prediction(verb, inputs, samples)
            result, trace = MCMCRun(samples, None, curves, texts=len(samples), chains=1, burn_in=0), None
        else:
            result, trace = _run_chains(verb, model, inputs, job)
        if folder is None:
            return result
        write_text(folder / SAMPLES, "".join(json.dumps(sample.to_json()) + "\n" for sample in result.samples))
        if trace is None:
            return result
        sections = chains_sections(result, trace, energy=verb.energy, sampler=verb.sampler)
        return replace(result, report=write_report(folder, title=f"Chains of {model.name}", sections=sections))


def _emit(samples: list[TextSample], job: Job) -> None:
    if job.emit is not None:
        for sample in samples:
            job.emit(json.dumps(sample.to_json(), ensure_ascii=False))


def _run_chains(verb: MCMC, model: MaskedLanguageModel, inputs: Inputs, job: Job) -> tuple[MCMCRun, Trace]:
    groups = _groups(inputs.starts, verb, model.vocabulary_size)
    histories: list[History] = []
    samples: list[TextSample] = []
    local: list[Tensor] = []
    texts: list[list[list[str]]] = []
    with progress("mcmc", total=len(groups) * verb.epochs, unit="epoch") as bar:
        for number, starts in enumerate(groups):
            file = None if job.output is None else job.output / f"chains-{number:05}.safetensors"
            group = ChainGroup(verb, model, inputs, starts, file)
            for history in group.histories(bar):
                if kept := group.samples(history):
                    samples += kept
                    _emit(kept, job)
            histories.append(history)
            if verb.energy != RAW or verb.local_by_epoch:
                local.append(group.local_energies(history))
            if inputs.texts.references:
                texts.append(group.decoded(history))
    proposed, accepted, novel = (
        _by_text([history.counts_N3R[:, which] for history in histories], verb) for which in range(3)
    )
    has_masks = all(bool((start.masked(model.mask_token_id)).any()) for start in inputs.starts)
    trace = Trace(
        energy_BCN=_by_text([history.energy_NR for history in histories], verb),
        proposed_BCN=proposed,
        accepted_BCN=accepted,
        novel_BCN=novel,
        temperature_N=torch.tensor([verb.annealing.temperature(epoch) for epoch in range(verb.epochs)]),
        burn_in=verb.burn_in,
        exact=group.keeps_target,
        dispersed=(has_masks and verb.start == "dispersed") or verb.forced_epochs > 0,
    )
    curves = chain_curves(
        trace,
        local_energy_BCN=_by_text(local, verb) if local else None,
        bleu_N=mean_bleu(texts, inputs.texts.sources, inputs.texts.references, chains=verb.chains) if texts else None,
    )
    count = len(inputs.starts)
    return MCMCRun(samples, diagnose(trace), curves, texts=count, chains=verb.chains, burn_in=verb.burn_in), trace


def _groups(starts: list[Start], verb: MCMC, vocabulary_size: int) -> list[list[Start]]:
    """Starts that travel together; those of one text are never parted."""
    longest = max(len(start.tokens_T) for start in starts)  # before the first epoch, all positions may be hidden
    rows = max(1, PROPOSAL_LOGITS // (vocabulary_size * longest))
    texts = [list(members) for _, members in groupby(starts, key=lambda start: start.text)]
    rows_of_a_text = max(map(len, texts)) if verb.sampler == MASK_PREDICT else verb.chains
    size = max(1, rows // rows_of_a_text)
    return [list(chain.from_iterable(texts[first : first + size])) for first in range(0, len(texts), size)]


def _by_text(values: list[Tensor], verb: MCMC) -> Tensor:
    """(N, rows of a group) each → (B, C, N)."""
    return torch.cat([value_NR.T.reshape(-1, verb.chains, verb.epochs) for value_NR in values])


def _check_request(verb: MCMC, inputs: Inputs, folder: Path) -> None:
    request = verb.model_dump(mode="json", exclude=GIVEN | {"model", "keep"})
    request |= to_plain(inputs.texts) | {"weights": weights_sha256(verb.model)}
    if (folder / REQUEST).is_file():
        refuse_another_run(read_json(folder / REQUEST), request, folder=folder)
        return
    if any(path.name != ".lock" for path in folder.iterdir()):
        raise ConfigError(f"{folder} holds other files; give a new folder")
    write_json(folder / REQUEST, request)


def _mask_predict(verb: MCMC, model: MaskedLanguageModel, inputs: Inputs) -> list[TextSample]:
    """The text of every length beam that is kept, in the order of the texts."""
    device, energy, samples = model.network.device, MaskedLMEnergy(model, kind=verb.energy), []
    for starts in _groups(inputs.starts, verb, model.vocabulary_size):
        lengths_R = torch.tensor([len(start.tokens_T) for start in starts], device=device)
        text_R = torch.tensor([start.text for start in starts], device=device)
        state = MaskPredict(model, inputs.allowed_V, verb.iterations).run(
            pad_sequence([start.tokens_T for start in starts], batch_first=True).to(device),
            lengths_R,
            free_RT=pad_sequence([start.free_T for start in starts], batch_first=True).to(device),
            source_R=text_R,
        )
        best_B = best_of_length_beam(state, text_R - starts[0].text)
        energy_B = energy.energies(state.tokens_RT[best_B], lengths_R[best_B], source_R=text_R[best_B])
        samples += [
            TextSample(
                text=int(text_R[row]),
                chain=0,
                epoch=verb.iterations - 1,
                energy=value,
                sample=model.decode(ids := state.tokens_RT[row, : int(lengths_R[row])].tolist()),
                tokens=ids,
                score=float(state.score_R[row]),
            )
            for row, value in zip(best_B.tolist(), energy_B.tolist(), strict=True)
        ]
    return samples


def _curves_of_prediction(verb: MCMC, inputs: Inputs, samples: list[TextSample]) -> ChainCurves:
    given = inputs.texts
    energy = sum(sample.energy for sample in samples) / len(samples)
    texts = [[[sample.sample.strip() for sample in samples]]]
    return ChainCurves(
        epoch=[verb.iterations - 1],
        energy=[energy],
        local_energy=None if verb.energy == RAW else [energy],
        bleu=mean_bleu(texts, given.sources, given.references, chains=1) if given.references else None,
    )


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

    def until(self, epochs: int) -> "History":
        of_epochs = (self.tokens_NRT[:epochs], self.energy_NR[:epochs], self.counts_N3R[:epochs])
        return History(*of_epochs, self.decided_R)


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

    @property
    def keeps_target(self) -> bool:
        exact: bool = SAMPLERS.get(self.verb.sampler)(self.target, self.proposal, 1.0, None).keeps_target
        return exact

    def histories(self, bar: Progress) -> Iterator[History]:
        """The history after each epoch; those kept in the folder come first."""
        history = self._kept_history()
        for epochs in range(1, history.epochs + 1):
            bar.advance()
            yield history.until(epochs)
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

    def samples(self, history: History) -> list[TextSample]:
        """The texts that are kept after the last epoch so far, one of each chain; none where `keep` waits for more."""
        last, burn_in = history.epochs - 1, self.verb.burn_in
        if last < burn_in or (self.verb.keep != "all" and history.epochs < self.verb.epochs):
            return []
        samples = []
        for row in range(len(self.lengths_R)):
            best = burn_in + int(history.energy_NR[burn_in:, row].argmin())
            epoch = best if self.verb.keep == "best" else last
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
