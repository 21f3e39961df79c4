"""`energylm mcmc` with sources on a tiny random translator: energies, lengths, BLEU, resuming, mistakes."""

from pathlib import Path

import pytest
import torch

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError, DataError, ModelError
from energylm.jobs.job import Job
from energylm.verbs import MCMC
from energylm.verbs.chains import mcmc_run

SOURCES = ["eht krelc stnuoc eht .staob", "a rolias", "reh retsis stniap a .pam"]
REFERENCES = ["the clerk counts the boats.", "a sailor", "her sister paints a map."]


def chains(folder: Path, **values: object) -> MCMC:
    short = {"epochs": 4, "burn_in": 1, "chains": 2}
    return MCMC.checked({"model": str(folder), "source": SOURCES, "keep": "last", **short, **values})


@pytest.mark.parametrize("energy", ["raw", "local"])
def test_translations_carry_the_energy_of_their_own_source(translator_folder: Path, energy: str) -> None:
    result = chains(translator_folder, local_by_epoch=True, energy=energy, block_share=0.5).run()
    model = ConditionalMaskedModel.from_pretrained(translator_folder)
    read = model.reading(SOURCES)
    assert [len(sample.tokens) for sample in result.samples[::2]] == [beam[0] for beam in read.likely_lengths(1)]
    local_sum = 0.0
    for sample in result.samples:
        row = (torch.tensor([sample.tokens]), torch.tensor([len(sample.tokens)]))
        own, other = (torch.tensor([(sample.text + shift) % 3]) for shift in (0, 1))
        of_own = MaskedLMEnergy(read, kind=energy).energies(*row, source_R=own)
        assert sample.energy == pytest.approx(float(of_own), abs=1e-3)
        of_other = MaskedLMEnergy(read, kind=energy).energies(*row, source_R=other)
        assert sample.energy != pytest.approx(float(of_other), abs=1e-2)
        local_sum += float(MaskedLMEnergy(read, kind="local").energies(*row, source_R=own))
    assert result.by_epoch.local_energy is not None and len(result.by_epoch.local_energy) == 4
    assert result.by_epoch.local_energy[-1] == pytest.approx(local_sum / 6, abs=1e-3)
    assert (result.by_epoch.local_energy == result.by_epoch.energy) == (energy == "local")


def test_bleu_by_epoch_is_sacrebleus_own(translator_folder: Path) -> None:
    import sacrebleu

    chosen = chains(translator_folder, reference=REFERENCES, keep="all")
    result = chosen.run()
    for epoch in (1, 2, 3):
        scores = []
        for chain in (0, 1):
            texts = [s.sample.strip() for s in result.samples if (s.epoch, s.chain) == (epoch, chain)]
            scores.append(sacrebleu.corpus_bleu(texts, [REFERENCES]).score)
        assert result.by_epoch.bleu is not None
        assert result.by_epoch.bleu[epoch] == pytest.approx(sum(scores) / 2, abs=1e-9)
    assert chains(translator_folder).run().by_epoch.bleu is None


def test_a_translation_goes_the_same_way_alone_and_in_company(
    translator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = chains(translator_folder, reference=REFERENCES, block_share=0.5).run()
    monkeypatch.setattr(mcmc_run, "PROPOSAL_LOGITS", 1)  # every source a group of its own
    apart = chains(translator_folder, reference=REFERENCES, block_share=0.5).run()
    assert [sample.tokens for sample in apart.samples] == [sample.tokens for sample in together.samples]
    assert apart.by_epoch.bleu == together.by_epoch.bleu


def test_a_killed_run_continues_with_its_sources(
    translator_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = chains(translator_folder, reference=REFERENCES, start="greedy", block_share=0.4)
    whole = chosen.run(Job(output=tmp_path / "whole"))
    real = mcmc_run.run_epochs

    def dies(*arguments: object, **options: object):
        for epoch in real(*arguments, **options):
            if epoch.index == 2:
                raise KeyboardInterrupt
            yield epoch

    monkeypatch.setattr(mcmc_run, "run_epochs", dies)
    with pytest.raises(KeyboardInterrupt):
        chosen.run(Job(output=tmp_path / "killed"))
    monkeypatch.undo()
    resumed = chosen.run(Job(output=tmp_path / "killed"))
    assert resumed.samples == whole.samples and resumed.by_epoch == whole.by_epoch
    assert "BLEU by epoch" in (tmp_path / "killed" / "results.md").read_text(encoding="utf-8")


def test_mask_predict_tries_a_beam_of_lengths(translator_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = chains(translator_folder, reference=REFERENCES, length_beam=3, sampler="mask-predict", iterations=4)
    result = chosen.run()
    model = ConditionalMaskedModel.from_pretrained(translator_folder)
    outputs = model.translate(SOURCES, iterations=4, length_beam=3)
    assert [sample.sample.strip() for sample in result.samples] == outputs
    assert result.by_epoch.bleu is not None and len(result.by_epoch.bleu) == 1
    monkeypatch.setattr(mcmc_run, "PROPOSAL_LOGITS", 1)
    assert [sample.tokens for sample in chosen.run().samples] == [sample.tokens for sample in result.samples]


def test_drafts_are_refined_for_their_own_source(translator_folder: Path) -> None:
    result = chains(translator_folder, init=REFERENCES, fixed="0", chains=1).run()
    for sample, draft in zip(result.samples, REFERENCES, strict=True):
        assert sample.sample.split()[0][:1] == draft[:1]  # the first token stays
    said = chains(translator_folder, block_share=0.25).check()
    assert "blocks of 25% of the positions" in said and "text 3" in said


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"init": ["one", "two"]}, ConfigError, "2 texts to start from came for 3 sources"),
        ({"reference": ["one"]}, ConfigError, "1 references came for 3 sources"),
        ({"source": [], "limit": 2}, ConfigError, "limit and longest_source choose among sources"),
        ({"longest_source": 1}, DataError, "no source of those given has at most 1 tokens; raise longest_source"),
        ({"reference_file": "x"}, ConfigError, "reference_file goes with source_file"),
        ({"length_beam": 2}, ConfigError, "length_beam is for mask-predict with sources"),
        ({"source": ["a", ""]}, DataError, "source 2 is empty"),
        ({"source": ["krelc " * 40]}, DataError, "source 1 has .* tokens but the model holds 32"),
        ({"length": [3], "block": 4}, ConfigError, "block 4 is larger than the 3 free positions of text 1"),
        ({"length": [40]}, DataError, "text 1 has 40 tokens but the model holds 32"),
    ],
)
def test_mistakes_are_one_line(
    translator_folder: Path, values: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        chains(translator_folder, **values).run()
    assert "\n" not in str(raised.value)


def test_models_that_read_no_source_are_refused(model_folder: Path, masked_folder: Path) -> None:
    for folder in (model_folder, masked_folder):
        with pytest.raises(ModelError, match="reads no source"):
            chains(folder).run()


def test_parallel_files_are_measured(translator_folder: Path, parallel_folder: Path, tmp_path: Path) -> None:
    files = {
        f"{side}_file": str(parallel_folder / f"test.{end}") for side, end in (("source", "de"), ("reference", "en"))
    }
    same = {
        "model": str(translator_folder),
        **files,
        "limit": 5,
        "longest_source": 24,
        "start": "greedy",
        "keep": "last",
    }
    drawn = same | {"epochs": 3, "burn_in": 1, "chains": 2, "energy": "raw", "local_by_epoch": True}
    result = MCMC.checked(drawn).run(Job(output=tmp_path / "chains"))
    local, bleu = result.by_epoch.local_energy, result.by_epoch.bleu
    assert result.texts == 5 and len(bleu) == 3 and "5 sentences, 2 chains each" in result.convention
    assert result.energy == pytest.approx(sum(local[1:]) / 2) and result.bleu == pytest.approx(sum(bleu[1:]) / 2)
    assert result.best_energy == min(local[1:]) and result.best_bleu == max(bleu[1:]) and result.last_bleu == bleu[-1]
    assert 0 <= result.diagnosis.novel <= result.diagnosis.acceptance <= 1
    greedy = {"sampler": "mask-predict", "iterations": 1}
    warm = MCMC.checked(same | greedy).run(Job(output=tmp_path / "warm"))
    assert warm.bleu == warm.best_bleu == warm.by_epoch.bleu[0] and warm.diagnosis is None
    with pytest.raises(DataError, match=r"no source of .* has at most 1 tokens"):
        MCMC.checked(drawn | {"longest_source": 1}).run()


def test_the_first_sources_that_are_short_enough_are_chosen_with_what_belongs_to_them(translator_folder: Path) -> None:
    """The second is the shortest: alone within its length, it keeps its reference and its draft."""
    lengths = [len(ConditionalMaskedModel.from_pretrained(translator_folder).source_ids(source)) for source in SOURCES]
    assert lengths[1] < min(lengths[0], lengths[2])
    same = {"init": REFERENCES, "reference": REFERENCES, "chains": 1, "local_by_epoch": True}
    short = chains(translator_folder, longest_source=lengths[1], **same).run()
    alone = {name: [values[1]] for name, values in (("init", REFERENCES), ("reference", REFERENCES))}
    assert short.to_json() == chains(translator_folder, source=[SOURCES[1]], **same | alone).run().to_json()
    assert chains(translator_folder, limit=2, **same).run().texts == 2
