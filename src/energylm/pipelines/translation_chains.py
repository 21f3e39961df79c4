"""Translate parallel text by chains or by Mask-Predict, and measure energy and BLEU: goyal2021 tables 6.2 to 6.6.

Energies are local ones (the paper's E_norm) whichever energy the chains have, in nats for each sentence. The paper
prints sums over its test set in thousands, so levels cannot be compared with it, orders can.
"""

from pathlib import Path
from typing import Any

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.config.mcmc import MASK_PREDICT, MCMCConfig, TranslationChainsConfig
from energylm.config.seq2seq import TRANSLATION
from energylm.errors import DataError
from energylm.pipelines.mcmc import MCMCRun, run_mcmc
from energylm.bundles.sequence_examples import read_examples

CONVENTION = "energy: local, nats a sentence, mean over sentences, chains and epochs after burn-in"


def translation_chains(config: TranslationChainsConfig, *, output: Path | str) -> dict[str, Any]:
    """What `summary` says of a run in the folder `output`, where a killed one continues."""
    examples = read_examples(TRANSLATION, config.data)
    model = ConditionalMaskedModel.from_pretrained(config.model)
    texts = [(source, target) for (source,), (target,) in zip(examples.sources, examples.targets, strict=True)]
    longest = min(config.longest_source or model.max_tokens, model.max_tokens)
    kept = [pair for pair in texts if 0 < len(model.source_ids(pair[0])) <= longest][: config.limit]
    if not kept:
        raise DataError(f"no source of {config.data[0]} has at most {longest} tokens; raise longest_source")
    sources, references = zip(*kept, strict=True)
    run = run_mcmc(
        MCMCConfig(
            model=config.model,
            sources=sources,
            references=references,
            start=config.start,
            keep="last",
            length_beam=config.length_beam,
            local_by_epoch=True,
            run=config.run,
        ),
        output=None if config.run.sampler == MASK_PREDICT else output,
    )
    found = summary(run, burn_in=config.run.burn_in)
    counts = f"{len(sources):,} sentences, {config.run.chains if run.diagnosis else 1} chains each"
    return found | {"sentences": len(sources), "convention": f"{CONVENTION}; {counts}; BLEU by sacrebleu"}


def summary(run: MCMCRun, *, burn_in: int) -> dict[str, Any]:
    """Numbers by name: means after burn-in, the best and the last epoch, and lists by epoch."""
    curves = run.curves.to_json()
    first = burn_in if run.diagnosis is not None else 0
    found: dict[str, Any] = {"by_epoch": curves}
    for name, best in (("local_energy", min), ("bleu", max)):
        if values := curves.get(name):
            short = name.removeprefix("local_")
            kept = values[first:]
            found |= {short: sum(kept) / len(kept), f"best_{short}": best(kept), f"last_{short}": values[-1]}
    if run.diagnosis is not None:
        found |= run.diagnosis.to_json()
    return found
