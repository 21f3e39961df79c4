"""`energylm mcmc` end to end on a tiny random masked model: infilling, constraints, resuming, all samplers."""

import json
import math
from pathlib import Path

import pytest
import torch

from energylm.bundles.masked_language_model import MaskedLanguageModel
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.errors import CheckpointError, ConfigError
from energylm.jobs.job import Job
from energylm.verbs import MCMC
from energylm.verbs.chains import mcmc_run
from energylm.verbs.chains.mcmc_report import MCMCRun, TextSample

SHORT = {"epochs": 5, "burn_in": 2, "chains": 3}


def chains(model: Path, **values: object) -> MCMC:
    return MCMC.checked({"model": str(model), "length": [6], **SHORT, **values})


@pytest.mark.parametrize(
    "values", [{"energy": "raw"}, {"block": 3, "annealing": {"block": True}}, {"sampler": "gibbs"}]
)
def test_samples_carry_their_own_energies_and_come_as_they_are_made(
    masked_folder: Path, values: dict[str, object]
) -> None:
    verb = chains(masked_folder, init=["mask", "The clerk counts the boats."], **values)
    lines: list[str] = []
    result = verb.run(Job(emit=lines.append))
    told = [TextSample.from_json(json.loads(line)) for line in lines]
    assert told == result.samples and len(told) == 2 * 3 * 3  # texts × chains × epochs after burn-in
    assert {(sample.text, sample.chain, sample.epoch) for sample in told} == {
        (text, chain, epoch) for text in range(2) for chain in range(3) for epoch in (2, 3, 4)
    }
    model = MaskedLanguageModel.from_pretrained(masked_folder)
    energy = MaskedLMEnergy(model, kind=verb.energy)
    for sample in told[:4]:
        tokens_1T = torch.tensor([sample.tokens])
        own = energy.energies(tokens_1T, torch.tensor([len(sample.tokens)]))
        assert sample.energy == pytest.approx(float(own), abs=1e-3)
        assert sample.sample == model.decode(sample.tokens)
        assert model.ordinary_V[sample.tokens].all()
    assert result.diagnosis is not None and result.diagnosis.verdict


def test_fixed_positions_stay_and_constraints_hold(masked_folder: Path) -> None:
    verb = chains(
        masked_folder,
        init=["The clerk [MASK][MASK][MASK][MASK] boats."],
        fixed="unmasked",
        require=["mends"],
        forbid=["the", "old map"],
    )
    for sample in verb.run().samples:
        assert sample.sample.startswith("The clerk") and sample.sample.endswith(" boats.")
        assert "mends" in sample.sample and " the" not in sample.sample


def test_keep_names_the_texts_that_are_written(masked_folder: Path) -> None:
    every = chains(masked_folder).run().samples
    last = chains(masked_folder, keep="last").run().samples
    best = chains(masked_folder, keep="best").run().samples
    for chain in range(3):
        of_chain = [sample for sample in every if sample.chain == chain]
        assert last[chain] == of_chain[-1]
        assert best[chain] == min(of_chain, key=lambda sample: sample.energy)


def test_a_text_goes_the_same_way_alone_and_in_company(masked_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["mask", "The clerk counts [MASK] boats and [MASK] lamps.", "A sailor"]
    together = chains(masked_folder, init=texts, keep="last").run().samples
    monkeypatch.setattr(mcmc_run, "PROPOSAL_LOGITS", 1)  # every text a group of its own
    assert [sample.tokens for sample in chains(masked_folder, init=texts, keep="last").run().samples] == [
        sample.tokens for sample in together
    ]


def test_a_killed_run_continues_and_a_finished_one_is_left_alone(
    masked_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = chains(masked_folder, init=["mask", "A sailor mends a bridge."], block=2)
    whole = chosen.run(Job(output=tmp_path / "whole"))
    assert whole.report == tmp_path / "whole" / "report.html"
    lines = (tmp_path / "whole" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [sample.to_json() for sample in whole.samples]

    class Killed(Exception):
        pass

    real, epochs = mcmc_run.run_epochs, []

    def dies_in_the_fourth(*arguments: object, **options: object):
        for epoch in real(*arguments, **options):
            epochs.append(epoch.index)
            if epoch.index == 3:
                raise Killed
            yield epoch

    monkeypatch.setattr(mcmc_run, "run_epochs", dies_in_the_fourth)
    with pytest.raises(Killed):
        chosen.run(Job(output=tmp_path / "killed"))
    assert not (tmp_path / "killed" / "report.html").exists()
    monkeypatch.setattr(
        mcmc_run, "run_epochs", lambda *a, **o: (epochs.append(("again", o["first_epoch"])), real(*a, **o))[1]
    )
    resumed = chosen.run(Job(output=tmp_path / "killed"))
    assert [sample.to_json() for sample in resumed.samples] == [sample.to_json() for sample in whole.samples]
    assert epochs == [0, 1, 2, 3, ("again", 3)]
    again = chosen.run(Job(output=tmp_path / "killed"))
    assert epochs[-1] == ("again", 5) and again.samples == resumed.samples
    with pytest.raises(CheckpointError, match=r"other settings: block \(was 2, now 1\), seed .*, starts"):
        chains(masked_folder, seed=1).run(Job(output=tmp_path / "killed"))
    with pytest.raises(ConfigError, match="other files"):
        chosen.run(Job(output=tmp_path))


@pytest.mark.parametrize("damage", ["a flipped byte", "half of it", "no tensors"])
def test_damaged_chains_are_noticed_and_run_again(
    masked_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    chosen = chains(masked_folder, init=["mask", "A sailor mends a bridge."])
    whole = chosen.run(Job(output=tmp_path))
    file = tmp_path / "chains-00000.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "a flipped byte":
        content[-9] ^= 1
    file.write_bytes({"half of it": content[: len(content) // 2], "no tensors": b"nothing"}.get(damage, content))
    again = chosen.run(Job(output=tmp_path))
    assert "chains-00000.safetensors is damaged: its chains are run again" in capsys.readouterr().err
    assert again.samples == whole.samples
    chosen.run(Job(output=tmp_path))
    assert "damaged" not in capsys.readouterr().err


def test_a_result_is_read_back_from_its_json(masked_folder: Path) -> None:
    result = chains(masked_folder, keep="last").run()
    again = MCMCRun.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))
    assert again.samples == result.samples and again.by_epoch == result.by_epoch
    assert again.to_json() == result.to_json() and math.isnan(again.diagnosis.r_hat)
    assert result.bleu is None and result.to_json()["energy"] == result.energy
    kept = result.by_epoch.local_energy[2:]  # a burn-in of 2
    assert (result.energy, result.best_energy, result.last_energy) == (sum(kept) / 3, min(kept), kept[-1])
    raw = chains(masked_folder, keep="last", energy="raw").run()
    assert raw.energy is raw.best_energy is raw.last_energy is None  # local ones were not asked for


def test_texts_come_from_a_file_too(masked_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("A sailor\n\nThe clerk\n", encoding="utf-8")
    from_file = chains(masked_folder, init=["mask"], input=str(tmp_path / "texts"), keep="last").run()
    assert from_file.samples == chains(masked_folder, init=["mask", "A sailor", "The clerk"], keep="last").run().samples


def test_mask_predict_writes_its_texts(masked_folder: Path, tmp_path: Path) -> None:
    result = chains(masked_folder, sampler="mask-predict").run(Job(output=tmp_path / "out"))
    lines = (tmp_path / "out" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [TextSample.from_json(json.loads(line)) for line in lines] == result.samples and result.report is None


def test_mask_predict_keeps_one_length(masked_folder: Path) -> None:
    chosen = chains(masked_folder, init=["mask", "mask"], length=[3, 5], sampler="mask-predict")
    result = chosen.run()
    assert [sample.text for sample in result.samples] == [0, 1] and result.diagnosis is None
    assert result.samples[0].tokens == result.samples[1].tokens and len(result.samples[0].tokens) in (3, 5)
    alone = [chains(masked_folder, length=[length], sampler="mask-predict").run().samples[0] for length in (3, 5)]
    assert result.samples[0].tokens == max(alone, key=lambda sample: sample.score or 0.0).tokens


def test_greedy_starts_are_one_text_and_dispersed_ones_are_not(masked_folder: Path) -> None:
    greedy = chains(masked_folder, start="greedy").run()
    assert greedy.diagnosis is not None and "one text" in greedy.diagnosis.verdict
    dispersed = chains(masked_folder).run()
    assert dispersed.diagnosis is not None and "one text" not in dispersed.diagnosis.verdict


def test_the_plan_shows_positions(masked_folder: Path) -> None:
    said = chains(masked_folder, init=["The clerk [MASK]"], fixed="0").check()
    assert "3 chains of 5 epochs" in said and "0:The=fixed" in said and "<|mask|>" in said
