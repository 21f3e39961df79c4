"""Sample or refine text with a masked language model read as an energy: `energylm mcmc`.

OUTPUT/mcmc.json            what was asked for; another request does not continue in the same folder
OUTPUT/chains-*.safetensors every state of a group of chains, written after each epoch: what a killed run continues from
OUTPUT/samples.jsonl        the texts that were kept
OUTPUT/report.html …        the diagnosis (`evaluation.chains_report`); its presence means finished

All chains of a group of texts travel in one batch. A chain's random numbers depend on the seed, its text and its number
only, so groups, resuming and other texts leave it as it is.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.mcmc import DEGENERATE_GIBBS, MASK_PREDICT, RAW, MCMCConfig
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError
from energylm.estimators.mixing import Diagnosis, Trace, diagnose
from energylm.evaluation.chains_curves import ChainCurves, chain_curves, mean_bleu
from energylm.evaluation.chains_report import chains_sections
from energylm.files import folder_lock, read_json, write_json, write_text
from energylm.pipelines.mcmc_chains import Group, History, TextSample
from energylm.pipelines.mcmc_start import Inputs, Start, open_model, prepare
from energylm.progress import progress
from energylm.report.report import write_report
from energylm.samplers.mask_predict import MaskPredict, best_of_length_beam
from energylm.training.checkpoint import refuse_another_run

REQUEST, SAMPLES = "mcmc.json", "samples.jsonl"
PROPOSAL_LOGITS = 1 << 25  # of one step of a group at most: 128 MB of float32


@dataclass(frozen=True)
class MCMCRun:
    samples: list[TextSample]
    diagnosis: Diagnosis | None  # none for mask-predict, which draws nothing
    curves: ChainCurves  # of mask-predict, its result alone
    report: Path | None

    def to_json(self) -> dict[str, Any]:
        return {
            "samples": [sample.to_json() for sample in self.samples],
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "by_epoch": self.curves.to_json(),
            "report": None if self.report is None else str(self.report),
        }


def plan_mcmc(config: MCMCConfig) -> str:
    """Load the model, check the texts and say what would be done. Writes nothing."""
    model = open_model(config)
    inputs, run = prepare(config, model), config.run
    if run.sampler == MASK_PREDICT:
        return f"would fill in {len(inputs.starts)} texts by {run.iterations} iterations of mask-predict"
    blocks = run.block if run.block_share is None else f"{run.block_share:.0%} of the positions"
    lines = [
        f"would run {run.chains} chains of {run.epochs} epochs for each of {len(inputs.starts)} texts: sampler "
        f"{run.sampler}, energy {run.energy}, blocks of {blocks}, {run.burn_in} epochs of burn-in"
    ]
    for start in inputs.starts:
        tokens = model.tokenizer.convert_ids_to_tokens(start.tokens_T.tolist())
        shown = [
            f"{place}:{token}{'' if free else '=fixed'}"
            for place, (token, free) in enumerate(zip(tokens, start.free_T, strict=True))
        ]
        lines.append(f"text {start.text + 1}, {int(start.free_T.sum())} free positions: {' '.join(shown)}")
    return "\n".join(lines)


def run_mcmc(
    config: MCMCConfig, *, output: Path | str | None = None, on_sample: Callable[[TextSample], None] | None = None
) -> MCMCRun:
    """Run the chains, or continue those in the folder `output`. `on_sample` gets every kept text as it comes."""
    tell = on_sample or (lambda sample: None)
    model = open_model(config)
    inputs = prepare(config, model)
    if config.run.sampler == MASK_PREDICT:
        if output is not None:
            raise ConfigError("mask-predict has no chains to report on or to resume; leave --output out")
        samples = _mask_predict(config, model, inputs)
        for sample in samples:
            tell(sample)
        return MCMCRun(samples, None, _result_alone(config, samples), None)
    folder = None if output is None else Path(output)
    with nullcontext() if folder is None else folder_lock(folder):
        if folder is not None:
            _check_request(config, folder)
        return _run_chains(config, model, inputs, folder, tell)


def _run_chains(
    config: MCMCConfig,
    model: MaskedLanguageModel,
    inputs: Inputs,
    folder: Path | None,
    tell: Callable[[TextSample], None],
) -> MCMCRun:
    groups = _groups(inputs.starts, config, model.vocabulary_size)
    histories, samples, local, texts = [], [], [], []
    with progress("mcmc", total=len(groups) * config.run.epochs, unit="epoch") as bar:
        for number, starts in enumerate(groups):
            file = None if folder is None else folder / f"chains-{number:05}.safetensors"
            group = Group(config, model, inputs, starts, file)
            for history in group.histories(bar):
                if config.keep == "all" and history.epochs > config.run.burn_in:
                    for sample in group.samples(history, [history.epochs - 1]):
                        samples.append(sample)
                        tell(sample)
            histories.append(history)
            if config.run.energy != RAW or config.local_by_epoch:
                local.append(group.local_energies(history))
            if config.references:
                texts.append(group.decoded(history))
            if config.keep != "all":
                kept = group.samples(history, None)
                samples += kept
                for sample in kept:
                    tell(sample)
    trace = _trace(config, inputs, model, histories)
    diagnosis = diagnose(trace)
    curves = chain_curves(
        trace,
        local_energy_BCN=_by_text(local, config) if local else None,
        bleu_N=mean_bleu(texts, config.sources, config.references, chains=config.run.chains) if texts else None,
    )
    report = None
    if folder is not None:
        write_text(folder / SAMPLES, "".join(json.dumps(sample.to_json()) + "\n" for sample in samples))
        started = [(f"text {start.text + 1}", model.decode(start.tokens_T.tolist())) for start in inputs.starts]
        ended = [(sample.text, sample.chain, sample.energy, sample.sample) for sample in samples]
        sections = chains_sections(
            trace,
            diagnosis,
            energy=config.run.energy,
            sampler=config.run.sampler,
            bleu_N=curves.bleu or (),
            started=started,
            ended=ended,
        )
        report = write_report(folder, title=f"Chains of {model.name}", sections=sections)
    return MCMCRun(samples, diagnosis, curves, report)


def _groups(starts: list[Start], config: MCMCConfig, vocabulary_size: int) -> list[list[Start]]:
    """Starts that travel together; those of one text are never parted."""
    longest = max(len(start.tokens_T) for start in starts)  # before the first epoch, all positions may be hidden
    rows = max(1, PROPOSAL_LOGITS // (vocabulary_size * longest))
    texts = [list(members) for _, members in groupby(starts, key=lambda start: start.text)]
    rows_of_a_text = max(map(len, texts)) if config.run.sampler == MASK_PREDICT else config.run.chains
    size = max(1, rows // rows_of_a_text)
    return [list(chain.from_iterable(texts[first : first + size])) for first in range(0, len(texts), size)]


def _by_text(values: list[Tensor], config: MCMCConfig) -> Tensor:
    """(N, rows of a group) each → (B, C, N)."""
    return torch.cat([value_NR.T.reshape(-1, config.run.chains, config.run.epochs) for value_NR in values])


def _trace(config: MCMCConfig, inputs: Inputs, model: MaskedLanguageModel, histories: list[History]) -> Trace:
    run = config.run
    proposed, accepted, novel = (
        _by_text([history.counts_N3R[:, which] for history in histories], config) for which in range(3)
    )
    has_masks = all(bool((start.masked(model.mask_token_id)).any()) for start in inputs.starts)
    return Trace(
        energy_BCN=_by_text([history.energy_NR for history in histories], config),
        proposed_BCN=proposed,
        accepted_BCN=accepted,
        novel_BCN=novel,
        temperature_N=torch.tensor([run.annealing.temperature(epoch) for epoch in range(run.epochs)]),
        burn_in=run.burn_in,
        exact=run.sampler != DEGENERATE_GIBBS,
        dispersed=(has_masks and config.start == "dispersed") or run.forced_epochs > 0,
    )


def _check_request(config: MCMCConfig, folder: Path) -> None:
    request = config.model_dump(mode="json", exclude={"model", "keep"}) | {"weights": weights_sha256(config.model)}
    if (folder / REQUEST).is_file():
        refuse_another_run(read_json(folder / REQUEST), request, folder=folder)
        return
    if any(path.name != ".lock" for path in folder.iterdir()):
        raise ConfigError(f"{folder} holds other files; give a new folder")
    write_json(folder / REQUEST, request)


def _mask_predict(config: MCMCConfig, model: MaskedLanguageModel, inputs: Inputs) -> list[TextSample]:
    """The text of every length beam that is kept, in the order of the texts."""
    device, energy, samples = model.network.device, MaskedLMEnergy(model, kind=config.run.energy), []
    for starts in _groups(inputs.starts, config, model.vocabulary_size):
        lengths_R = torch.tensor([len(start.tokens_T) for start in starts], device=device)
        text_R = torch.tensor([start.text for start in starts], device=device)
        state = MaskPredict(model, inputs.allowed_V, config.run.iterations).run(
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
                epoch=config.run.iterations - 1,
                energy=value,
                sample=model.decode(ids := state.tokens_RT[row, : int(lengths_R[row])].tolist()),
                tokens=ids,
                score=float(state.score_R[row]),
            )
            for row, value in zip(best_B.tolist(), energy_B.tolist(), strict=True)
        ]
    return samples


def _result_alone(config: MCMCConfig, samples: list[TextSample]) -> ChainCurves:
    energy = sum(sample.energy for sample in samples) / len(samples)
    texts = [[[sample.sample.strip() for sample in samples]]]
    return ChainCurves(
        epoch=[config.run.iterations - 1],
        energy=[energy],
        local_energy=None if config.run.energy == RAW else [energy],
        bleu=mean_bleu(texts, config.sources, config.references, chains=1) if config.references else None,
    )
