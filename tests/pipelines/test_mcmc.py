"""`energylm mcmc` end to end on a tiny random masked model: infilling, constraints, resuming, all samplers."""

import json
from pathlib import Path

import pytest
import torch

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.config.mcmc import MCMCConfig
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import CheckpointError, ConfigError
from energylm.pipelines import mcmc, mcmc_chains
from energylm.pipelines.mcmc import plan_mcmc, run_mcmc

SHORT = {"epochs": 5, "burn_in": 2, "chains": 3}


def config(model: Path, **values: object) -> MCMCConfig:
    run = SHORT | dict(values.pop("run", {}))
    return MCMCConfig.checked({"model": str(model), "lengths": [6], **values, "run": run})


@pytest.mark.parametrize("run", [{"energy": "raw"}, {"block": 3, "annealing": {"block": True}}, {"sampler": "gibbs"}])
def test_samples_carry_their_own_energies_and_come_as_they_are_made(
    masked_folder: Path, run: dict[str, object]
) -> None:
    chosen = config(masked_folder, texts=["mask", "The clerk counts the boats."], run=run)
    told = []
    result = run_mcmc(chosen, on_sample=told.append)
    assert told == result.samples and len(told) == 2 * 3 * 3  # texts × chains × epochs after burn-in
    assert {(sample.text, sample.chain, sample.epoch) for sample in told} == {
        (text, chain, epoch) for text in range(2) for chain in range(3) for epoch in (2, 3, 4)
    }
    model = MaskedLanguageModel.from_pretrained(masked_folder)
    energy = MaskedLMEnergy(model, kind=chosen.run.energy)
    for sample in told[:4]:
        tokens_1T = torch.tensor([sample.tokens])
        found = energy.energies(tokens_1T, torch.tensor([len(sample.tokens)]))
        assert sample.energy == pytest.approx(float(found), abs=1e-3)
        assert sample.sample == model.decode(sample.tokens)
        assert model.ordinary_V[sample.tokens].all()
    assert result.diagnosis is not None and result.diagnosis.verdict


def test_fixed_positions_stay_and_constraints_hold(masked_folder: Path) -> None:
    chosen = config(
        masked_folder,
        texts=["The clerk [MASK][MASK][MASK][MASK] boats."],
        fixed="unmasked",
        require=["mends"],
        forbid=["the", "old map"],
    )
    for sample in run_mcmc(chosen).samples:
        assert sample.sample.startswith("The clerk") and sample.sample.endswith(" boats.")
        assert "mends" in sample.sample and " the" not in sample.sample


def test_keep_names_the_texts_that_are_written(masked_folder: Path) -> None:
    every = run_mcmc(config(masked_folder)).samples
    last = run_mcmc(config(masked_folder, keep="last")).samples
    best = run_mcmc(config(masked_folder, keep="best")).samples
    for chain in range(3):
        of_chain = [sample for sample in every if sample.chain == chain]
        assert last[chain] == of_chain[-1]
        assert best[chain] == min(of_chain, key=lambda sample: sample.energy)


def test_a_text_goes_the_same_way_alone_and_in_company(masked_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["mask", "The clerk counts [MASK] boats and [MASK] lamps.", "A sailor"]
    together = run_mcmc(config(masked_folder, texts=texts, keep="last")).samples
    monkeypatch.setattr(mcmc, "PROPOSAL_LOGITS", 1)  # every text a group of its own
    assert [sample.tokens for sample in run_mcmc(config(masked_folder, texts=texts, keep="last")).samples] == [
        sample.tokens for sample in together
    ]


def test_a_killed_run_continues_and_a_finished_one_is_left_alone(
    masked_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = config(masked_folder, texts=["mask", "A sailor mends a bridge."], run={"block": 2})
    whole = run_mcmc(chosen, output=tmp_path / "whole")
    assert whole.report == tmp_path / "whole" / "report.html"
    lines = (tmp_path / "whole" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [sample.to_json() for sample in whole.samples]

    class Killed(Exception):
        pass

    real, epochs = mcmc_chains.run_epochs, []

    def dies_in_the_fourth(*arguments: object, **options: object):
        for epoch in real(*arguments, **options):
            epochs.append(epoch.index)
            if epoch.index == 3:
                raise Killed
            yield epoch

    monkeypatch.setattr(mcmc_chains, "run_epochs", dies_in_the_fourth)
    with pytest.raises(Killed):
        run_mcmc(chosen, output=tmp_path / "killed")
    assert not (tmp_path / "killed" / "report.html").exists()
    monkeypatch.setattr(
        mcmc_chains, "run_epochs", lambda *a, **o: (epochs.append(("again", o["first_epoch"])), real(*a, **o))[1]
    )
    resumed = run_mcmc(chosen, output=tmp_path / "killed")
    assert [sample.to_json() for sample in resumed.samples] == [sample.to_json() for sample in whole.samples]
    assert epochs == [0, 1, 2, 3, ("again", 3)]
    again = run_mcmc(chosen, output=tmp_path / "killed")
    assert epochs[-1] == ("again", 5) and again.samples == resumed.samples
    with pytest.raises(CheckpointError, match=r"other settings: run\.block \(was 2, now 1\), run\.seed .*, texts"):
        run_mcmc(config(masked_folder, run={"seed": 1}), output=tmp_path / "killed")
    with pytest.raises(ConfigError, match="other files"):
        run_mcmc(chosen, output=tmp_path)


@pytest.mark.parametrize("damage", ["a flipped byte", "half of it", "no tensors"])
def test_damaged_chains_are_noticed_and_run_again(
    masked_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    chosen = config(masked_folder, texts=["mask", "A sailor mends a bridge."])
    whole = run_mcmc(chosen, output=tmp_path)
    file = tmp_path / "chains-00000.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "a flipped byte":
        content[-9] ^= 1
    file.write_bytes({"half of it": content[: len(content) // 2], "no tensors": b"nothing"}.get(damage, content))
    again = run_mcmc(chosen, output=tmp_path)
    assert "chains-00000.safetensors is damaged: its chains are run again" in capsys.readouterr().err
    assert again.samples == whole.samples
    run_mcmc(chosen, output=tmp_path)
    assert "damaged" not in capsys.readouterr().err


def test_mask_predict_keeps_one_length(masked_folder: Path) -> None:
    chosen = config(masked_folder, texts=["mask", "mask"], lengths=[3, 5], run={"sampler": "mask-predict"})
    result = run_mcmc(chosen)
    assert [sample.text for sample in result.samples] == [0, 1] and result.diagnosis is None
    assert result.samples[0].tokens == result.samples[1].tokens and len(result.samples[0].tokens) in (3, 5)
    alone = [
        run_mcmc(config(masked_folder, lengths=[length], run={"sampler": "mask-predict"})).samples[0]
        for length in (3, 5)
    ]
    assert result.samples[0].tokens == max(alone, key=lambda sample: sample.score or 0.0).tokens


def test_greedy_starts_are_one_text_and_dispersed_ones_are_not(masked_folder: Path) -> None:
    greedy = run_mcmc(config(masked_folder, start="greedy"))
    assert greedy.diagnosis is not None and "one text" in greedy.diagnosis.verdict
    dispersed = run_mcmc(config(masked_folder))
    assert dispersed.diagnosis is not None and "one text" not in dispersed.diagnosis.verdict


def test_the_plan_shows_positions(masked_folder: Path) -> None:
    said = plan_mcmc(config(masked_folder, texts=["The clerk [MASK]"], fixed="0"))
    assert "3 chains of 5 epochs" in said and "0:The=fixed" in said and "<|mask|>" in said
