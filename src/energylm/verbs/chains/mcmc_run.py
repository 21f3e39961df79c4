"""Chains of many texts: groups that travel in one batch, what is kept of them, their traces and the report.

A chain's random numbers depend on the seed, its text and its number only, so groups, resuming and other texts leave it
as it is.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain, groupby
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.model_folder import weights_sha256
from energylm.config.sampling import DEGENERATE_GIBBS, MASK_PREDICT, RAW
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError
from energylm.estimators.mixing import Trace, diagnose
from energylm.files import folder_lock, read_json, write_json, write_text
from energylm.jobs.job import Job
from energylm.progress import progress
from energylm.records import to_plain
from energylm.report.report import write_report
from energylm.samplers.mask_predict import MaskPredict, best_of_length_beam
from energylm.training.checkpoint import refuse_another_run
from energylm.verbs.chains.mcmc import MCMC
from energylm.verbs.chains.mcmc_group import ChainGroup, History
from energylm.verbs.chains.mcmc_report import ChainCurves, MCMCRun, TextSample, chain_curves, chains_sections, mean_bleu
from energylm.verbs.chains.mcmc_start import Inputs, Start, open_inputs

REQUEST, SAMPLES = "mcmc.json", "samples.jsonl"
GIVEN = {"init", "input", "source", "source_file", "reference", "reference_file", "longest_source", "limit"}
PROPOSAL_LOGITS = 1 << 25  # of one step of a group at most: 128 MB of float32


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
    """Run the chains, or continue those in the job's folder. Every kept text is written as it comes."""
    model, inputs = open_inputs(verb)

    def tell(sample: TextSample) -> None:
        if job.emit is not None:
            job.emit(json.dumps(sample.to_json(), ensure_ascii=False))

    folder = job.output
    with nullcontext() if folder is None else folder_lock(folder):
        if folder is not None:
            _check_request(verb, inputs, folder)
        if verb.sampler == MASK_PREDICT:
            return _run_mask_predict(verb, model, inputs, folder, tell)
        return _run_chains(verb, model, inputs, folder, tell)


def _run_mask_predict(
    verb: MCMC,
    model: MaskedLanguageModel,
    inputs: Inputs,
    folder: Path | None,
    tell: Callable[[TextSample], None],
) -> MCMCRun:
    samples = _mask_predict(verb, model, inputs)
    for sample in samples:
        tell(sample)
    if folder is not None:
        _write_samples(folder, samples)
    curves = _result_alone(verb, inputs, samples)
    return MCMCRun(samples, None, curves, texts=len(samples), chains=1, burn_in=0)


def _run_chains(
    verb: MCMC,
    model: MaskedLanguageModel,
    inputs: Inputs,
    folder: Path | None,
    tell: Callable[[TextSample], None],
) -> MCMCRun:
    groups = _groups(inputs.starts, verb, model.vocabulary_size)
    histories, samples, local, texts = [], [], [], []
    with progress("mcmc", total=len(groups) * verb.epochs, unit="epoch") as bar:
        for number, starts in enumerate(groups):
            file = None if folder is None else folder / f"chains-{number:05}.safetensors"
            group = ChainGroup(verb, model, inputs, starts, file)
            for history in group.histories(bar):
                if verb.keep == "all" and history.epochs > verb.burn_in:
                    for sample in group.samples(history, [history.epochs - 1]):
                        samples.append(sample)
                        tell(sample)
            histories.append(history)
            if verb.energy != RAW or verb.local_by_epoch:
                local.append(group.local_energies(history))
            if inputs.texts.references:
                texts.append(group.decoded(history))
            if verb.keep != "all":
                kept = group.samples(history, None)
                samples += kept
                for sample in kept:
                    tell(sample)
    trace = _trace(verb, inputs, model, histories)
    diagnosis = diagnose(trace)
    curves = chain_curves(
        trace,
        local_energy_BCN=_by_text(local, verb) if local else None,
        bleu_N=mean_bleu(texts, inputs.texts.sources, inputs.texts.references, chains=verb.chains) if texts else None,
    )
    report = None
    if folder is not None:
        _write_samples(folder, samples)
        started = [(f"text {start.text + 1}", model.decode(start.tokens_T.tolist())) for start in inputs.starts]
        ended = [(sample.text, sample.chain, sample.energy, sample.sample) for sample in samples]
        sections = chains_sections(
            trace,
            diagnosis,
            energy=verb.energy,
            sampler=verb.sampler,
            bleu_N=curves.bleu or (),
            started=started,
            ended=ended,
        )
        report = write_report(folder, title=f"Chains of {model.name}", sections=sections)
    return MCMCRun(
        samples, diagnosis, curves, texts=len(inputs.starts), chains=verb.chains, burn_in=verb.burn_in, report=report
    )


def _write_samples(folder: Path, samples: list[TextSample]) -> None:
    write_text(folder / SAMPLES, "".join(json.dumps(sample.to_json()) + "\n" for sample in samples))


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


def _trace(verb: MCMC, inputs: Inputs, model: MaskedLanguageModel, histories: list[History]) -> Trace:
    proposed, accepted, novel = (
        _by_text([history.counts_N3R[:, which] for history in histories], verb) for which in range(3)
    )
    has_masks = all(bool((start.masked(model.mask_token_id)).any()) for start in inputs.starts)
    return Trace(
        energy_BCN=_by_text([history.energy_NR for history in histories], verb),
        proposed_BCN=proposed,
        accepted_BCN=accepted,
        novel_BCN=novel,
        temperature_N=torch.tensor([verb.annealing.temperature(epoch) for epoch in range(verb.epochs)]),
        burn_in=verb.burn_in,
        exact=verb.sampler != DEGENERATE_GIBBS,
        dispersed=(has_masks and verb.start == "dispersed") or verb.forced_epochs > 0,
    )


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


def _result_alone(verb: MCMC, inputs: Inputs, samples: list[TextSample]) -> ChainCurves:
    given = inputs.texts
    energy = sum(sample.energy for sample in samples) / len(samples)
    texts = [[[sample.sample.strip() for sample in samples]]]
    return ChainCurves(
        epoch=[verb.iterations - 1],
        energy=[energy],
        local_energy=None if verb.energy == RAW else [energy],
        bleu=mean_bleu(texts, given.sources, given.references, chains=1) if given.references else None,
    )
