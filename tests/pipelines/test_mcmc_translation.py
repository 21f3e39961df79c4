"""`energylm mcmc` with sources on a tiny random translator: energies, lengths, BLEU, resuming, mistakes."""

from pathlib import Path

import pytest
import torch

from energylm.bundles.conditional_masked_model import ConditionalMaskedModel
from energylm.config.mcmc import MCMCConfig, TranslationChainsConfig
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import ConfigError, DataError, ModelError
from energylm.pipelines import mcmc, mcmc_chains
from energylm.pipelines.mcmc import plan_mcmc, run_mcmc
from energylm.pipelines.translation_chains import translation_chains

SOURCES = ["eht krelc stnuoc eht .staob", "a rolias", "reh retsis stniap a .pam"]
REFERENCES = ["the clerk counts the boats.", "a sailor", "her sister paints a map."]


def config(folder: Path, **values: object) -> MCMCConfig:
    run = {"epochs": 4, "burn_in": 1, "chains": 2} | dict(values.pop("run", {}))
    return MCMCConfig.checked({"model": str(folder), "sources": SOURCES, "keep": "last", **values, "run": run})


@pytest.mark.parametrize("energy", ["raw", "local"])
def test_translations_carry_the_energy_of_their_own_source(translator_folder: Path, energy: str) -> None:
    result = run_mcmc(config(translator_folder, local_by_epoch=True, run={"energy": energy, "block_share": 0.5}))
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
    assert result.curves.local_energy is not None and len(result.curves.local_energy) == 4
    assert result.curves.local_energy[-1] == pytest.approx(local_sum / 6, abs=1e-3)
    assert (result.curves.local_energy == result.curves.energy) == (energy == "local")


def test_bleu_by_epoch_is_sacrebleus_own(translator_folder: Path) -> None:
    import sacrebleu

    chosen = config(translator_folder, references=REFERENCES, keep="all")
    result = run_mcmc(chosen)
    for epoch in (1, 2, 3):
        scores = []
        for chain in (0, 1):
            texts = [s.sample.strip() for s in result.samples if (s.epoch, s.chain) == (epoch, chain)]
            scores.append(sacrebleu.corpus_bleu(texts, [REFERENCES]).score)
        assert result.curves.bleu is not None
        assert result.curves.bleu[epoch] == pytest.approx(sum(scores) / 2, abs=1e-9)
    assert run_mcmc(config(translator_folder)).curves.bleu is None


def test_a_translation_goes_the_same_way_alone_and_in_company(
    translator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = run_mcmc(config(translator_folder, references=REFERENCES, run={"block_share": 0.5}))
    monkeypatch.setattr(mcmc, "PROPOSAL_LOGITS", 1)  # every source a group of its own
    apart = run_mcmc(config(translator_folder, references=REFERENCES, run={"block_share": 0.5}))
    assert [sample.tokens for sample in apart.samples] == [sample.tokens for sample in together.samples]
    assert apart.curves.bleu == together.curves.bleu


def test_a_killed_run_continues_with_its_sources(
    translator_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(translator_folder, references=REFERENCES, start="greedy", run={"block_share": 0.4})
    whole = run_mcmc(chosen, output=tmp_path / "whole")
    real = mcmc_chains.run_epochs

    def dies(*arguments: object, **options: object):
        for epoch in real(*arguments, **options):
            if epoch.index == 2:
                raise KeyboardInterrupt
            yield epoch

    monkeypatch.setattr(mcmc_chains, "run_epochs", dies)
    with pytest.raises(KeyboardInterrupt):
        run_mcmc(chosen, output=tmp_path / "killed")
    monkeypatch.undo()
    resumed = run_mcmc(chosen, output=tmp_path / "killed")
    assert resumed.samples == whole.samples and resumed.curves == whole.curves
    assert "BLEU by epoch" in (tmp_path / "killed" / "results.md").read_text(encoding="utf-8")


def test_mask_predict_tries_a_beam_of_lengths(translator_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(
        translator_folder, references=REFERENCES, length_beam=3, run={"sampler": "mask-predict", "iterations": 4}
    )
    result = run_mcmc(chosen)
    model = ConditionalMaskedModel.from_pretrained(translator_folder)
    outputs = model.translate(SOURCES, iterations=4, length_beam=3)
    assert [sample.sample.strip() for sample in result.samples] == outputs
    assert result.curves.bleu is not None and len(result.curves.bleu) == 1
    monkeypatch.setattr(mcmc, "PROPOSAL_LOGITS", 1)
    assert [sample.tokens for sample in run_mcmc(chosen).samples] == [sample.tokens for sample in result.samples]


def test_drafts_are_refined_for_their_own_source(translator_folder: Path) -> None:
    result = run_mcmc(config(translator_folder, texts=REFERENCES, fixed="0", run={"chains": 1}))
    for sample, draft in zip(result.samples, REFERENCES, strict=True):
        assert sample.sample.split()[0][:1] == draft[:1]  # the first token stays
    said = plan_mcmc(config(translator_folder, run={"block_share": 0.25}))
    assert "blocks of 25% of the positions" in said and "text 3" in said


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"texts": ["one", "two"]}, ConfigError, "2 texts to start from came for 3 sources"),
        ({"references": ["one"]}, ConfigError, "1 references came for 3 sources"),
        ({"length_beam": 2}, ConfigError, "length_beam is for mask-predict with sources"),
        ({"sources": ["a", ""]}, DataError, "source 2 is empty"),
        ({"sources": ["krelc " * 40]}, DataError, "source 1 has .* tokens but the model holds 32"),
        ({"lengths": [3], "run": {"block": 4}}, ConfigError, "block 4 is larger than the 3 free positions of text 1"),
        ({"lengths": [40]}, DataError, "text 1 has 40 tokens but the model holds 32"),
    ],
)
def test_mistakes_are_one_line(
    translator_folder: Path, values: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        run_mcmc(config(translator_folder, **values))
    assert "\n" not in str(raised.value)


def test_models_that_read_no_source_are_refused(model_folder: Path, masked_folder: Path) -> None:
    for folder in (model_folder, masked_folder):
        with pytest.raises(ModelError, match="reads no source"):
            run_mcmc(config(folder))


def test_a_study_measures_parallel_files(translator_folder: Path, parallel_folder: Path, tmp_path: Path) -> None:
    files = [str(parallel_folder / f"test.{end}") for end in ("de", "en")]
    values = {"model": str(translator_folder), "data": files, "limit": 5, "longest_source": 24}
    run = {"epochs": 3, "burn_in": 1, "chains": 2, "energy": "raw"}
    found = translation_chains(TranslationChainsConfig.checked(values | {"run": run}), output=tmp_path / "chains")
    by_epoch = found["by_epoch"]
    assert found["sentences"] == 5 and len(by_epoch["bleu"]) == 3
    assert found["energy"] == pytest.approx(sum(by_epoch["local_energy"][1:]) / 2)
    assert found["best_energy"] == min(by_epoch["local_energy"][1:]) and found["last_bleu"] == by_epoch["bleu"][-1]
    assert 0 <= found["novel"] <= found["acceptance"] <= 1
    greedy = {"sampler": "mask-predict", "iterations": 1, "energy": "local"}
    warm = translation_chains(TranslationChainsConfig.checked(values | {"run": greedy}), output=tmp_path / "warm")
    assert warm["bleu"] == warm["best_bleu"] == warm["by_epoch"]["bleu"][0] and "acceptance" not in warm
    with pytest.raises(DataError, match=r"no source of .* has at most 1 tokens"):
        translation_chains(TranslationChainsConfig.checked(values | {"longest_source": 1}), output=tmp_path / "none")
