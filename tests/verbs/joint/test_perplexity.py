"""`energylm perplexity` as a function: the same tokens for every model, the report, and the mistakes that are named."""

import json
import math

import pytest

from energylm import EnergyModel, LanguageModel, ResidualModel
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import BusyError, ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.files import folder_lock
from energylm.jobs import kept_blocks
from energylm.jobs.job import Job
from energylm.verbs.joint import measuring
from energylm.verbs.joint.measuring import PerplexityResult
from energylm.verbs.joint.perplexity import Perplexity

SIZES = {"length": 16, "prefix_tokens": 12, "contexts": 4, "n": 20, "position_samples": 10}


@pytest.fixture
def config(model_folder, energy_folder, corpus_folder):
    def make(**changes):
        paths = {"language_model": str(model_folder), "energy": str(energy_folder), "source": str(corpus_folder)}
        return Perplexity.checked(paths | SIZES | changes)

    return make


def test_everything_in_one_table_and_one_report(config, model_folder, energy_folder, tmp_path):
    chosen = config(by_samples=True, by_position=True, balm=str(model_folder), ralm=str(model_folder))
    run = chosen.run(Job(output=tmp_path / "report"))
    lm = LanguageModel.from_pretrained(model_folder).without_special_tokens()
    windows = chosen.windows.load(lm.tokenizer, model="the model")
    alone = lm.perplexity(windows, prefix_tokens=12)
    assert run.base.value == pytest.approx(alone.value, rel=1e-6) and run.base.tokens == 4 * 4
    assert run.baselines["ralm"] == run.baselines["balm"] == alone
    joint = ResidualModel(lm, EnergyModel.from_pretrained(energy_folder))
    direct = joint.perplexity(windows, prefix_tokens=12, n=20)
    assert (run.joint.lower, run.joint.upper) == pytest.approx((direct.lower, direct.upper), rel=1e-6)
    assert run.joint.lower != pytest.approx(run.base.value, rel=1e-3)  # teeth: an energy that did nothing would be seen
    assert [at.n for at in run.by_samples] == [2, 5, 10, 20] and run.by_samples[-1] is run.joint
    assert run.by_position.positions == (13, 14, 15, 16)
    names = [row[0] for row in run.table.rows]
    assert run.table.convention.startswith("4 windows of 16 tokens of corpus (test, documents within); nats per token")
    assert names == ["base LM", "RALM", "BALM", "joint model", "joint sampler, certified"]
    assert run.report == tmp_path / "report" / "report.html"
    assert {path.name for path in run.report.parent.glob("*.png")} == {
        "perplexity-by-number-of-samples.png",
        "perplexity-gain-by-position.png",
    }
    kept = json.loads((run.report.parent / "results.json").read_text())
    assert kept["sections"]["perplexity"]["rows"][3]["upper end"] == run.joint.upper
    sure = run.joint.certified
    assert kept["sections"]["perplexity"]["rows"][4]["upper end"] == sure.bound
    assert math.log(sure.bound / sure.value) == pytest.approx(math.log(20) / 16)  # 16 tokens share log(1/δ)
    assert config(confidence=0.5).run().joint.certified.bound == pytest.approx(sure.value * 2 ** (1 / 16))
    assert run.to_json()["by_samples"][-1]["certified"]["bound"] == sure.bound
    again = PerplexityResult.from_json(json.loads(json.dumps(run.to_json())))  # out and in, to the last digit
    assert again.to_json() == run.to_json()


def test_an_energy_of_shorter_windows_and_another_model_is_told(config, energy_folder, tmp_path, capsys):
    """Trained on windows of 12 tokens, measured on 16. Teeth: on 12 the length is no ground for doubt."""
    energy = EnergyModel.from_pretrained(energy_folder)
    negatives = {"truncation": {}, "length": 12}
    energy.provenance["sources"] = [{"generator": {"name": "other", "sha256": "0" * 64}, "negatives": negatives}]
    energy.save_pretrained(tmp_path / "energy")
    run = config(energy=str(tmp_path / "energy")).run(Job(output=tmp_path / "report"))
    length, writer = "windows of 12 tokens and reads up to 16 here", "trained against other (weights 000000000000)"
    for told in (
        run.joint.warning,
        run.to_json()["joint"]["warning"],
        (tmp_path / "report" / "results.md").read_text(),
    ):
        assert length in told and writer in told
    assert length in capsys.readouterr().err
    shorter = config(energy=str(tmp_path / "energy"), length=12, prefix_tokens=8).run().joint.warning
    assert writer in shorter and "windows of" not in shorter


def numbers(run):
    """Every number of a run."""
    return json.dumps(run.to_json(), sort_keys=True)


def flat(value):
    """The numbers of a JSON value in order, and its texts."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in flat(value[key])]
    return [leaf for inner in value for leaf in flat(inner)] if isinstance(value, list) else [value]


def test_blocks_change_nothing_but_last_bits(config, monkeypatch):
    """A window's samples depend on the seed and its index: blocks of 1, of 3 and one block of all agree. A worker that
    forgot where its block begins would give every block the samples of the first."""
    chosen = {"by_samples": True, "by_position": True, "contexts": 5}
    whole, *cut = (config(**chosen, block_contexts=size).run().to_json() for size in (100, 1, 3))
    for other in cut:
        for found, expected in zip(flat(other), flat(whole), strict=True):
            close = pytest.approx(expected, rel=1e-4, abs=1e-5) if isinstance(expected, float) else expected
            assert found == close
    usual = measuring.WindowBlock
    monkeypatch.setattr(measuring, "WindowBlock", lambda first, *rest: usual(0, *rest))
    mistaken = config(**chosen, block_contexts=3).run().to_json()
    assert mistaken["joint"]["lower"] != pytest.approx(whole["joint"]["lower"], rel=1e-4)
    assert mistaken["by_position"]["gain_lower"] != pytest.approx(whole["by_position"]["gain_lower"], rel=1e-4)


def test_a_killed_run_goes_on_and_ends_in_the_same_bytes(config, model_folder, tmp_path, monkeypatch, capsys):
    chosen = config(by_position=True, balm=str(model_folder), block_contexts=1)
    alone = chosen.run(Job(output=tmp_path / "alone"))
    assert numbers(alone) == numbers(chosen.run())  # what is kept is what was found, to the last bit
    done, usual = [], kept_blocks.write_json

    def killed(path, value):
        if len(done) == 6:  # BALM's four blocks, and two of the joint model's
            raise KeyboardInterrupt
        done.append(path)
        usual(path, value)

    monkeypatch.setattr(kept_blocks, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        chosen.run(Job(output=tmp_path / "killed"))
    assert not (tmp_path / "killed" / "report.html").exists()
    monkeypatch.setattr(kept_blocks, "write_json", usual)
    drawn, draws = [], ResidualModel.measure
    monkeypatch.setattr(
        ResidualModel, "measure", lambda self, texts, **o: drawn.append(o["first_context"]) or draws(self, texts, **o)
    )
    again = chosen.run(Job(output=tmp_path / "killed"))
    assert drawn == [2, 3] and numbers(again) == numbers(alone)
    for name in ("results.json", "results.md"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    drawn.clear()
    chosen.run(Job(output=tmp_path / "killed"))
    assert not drawn and "changed" not in capsys.readouterr().err
    config(seed=1, block_contexts=1).run(Job(output=tmp_path / "killed"))
    assert drawn == [0, 1, 2, 3]
    with folder_lock(tmp_path / "killed"), pytest.raises(BusyError):
        chosen.run(Job(output=tmp_path / "killed"))


def test_doubts_about_the_joint_model_are_said_once(config, capsys):
    run = config(block_contexts=1).run()
    assert run.joint.warning is not None and capsys.readouterr().err.count(run.joint.warning) == 1


def test_language_models_alone(config):
    run = config(energy=None).run()
    assert run.joint is None and run.report is None and [row[0] for row in run.table.rows] == ["base LM"]


def test_windows_of_a_corpus_lie_within_documents_and_depend_on_the_seed(config, model_folder, corpus_folder, capsys):
    lm = LanguageModel.from_pretrained(model_folder)
    windows = config(contexts=3).windows.load(lm.tokenizer, model="the model")
    assert windows == config(contexts=3, n=50).windows.load(lm.tokenizer, model="the model")
    assert windows != config(contexts=3, seed=1).windows.load(lm.tokenizer, model="the model")
    assert all(
        lm.eos_token_id not in window for window in config(contexts=1000).windows.load(lm.tokenizer, model="the model")
    )
    assert "1000 were asked for" in capsys.readouterr().err
    packed = config(contexts=1000, documents="packed").windows.load(lm.tokenizer, model="the model")
    assert any(lm.eos_token_id in window for window in packed)


def test_windows_of_a_file(config, model_folder, texts_folder):
    lm = LanguageModel.from_pretrained(model_folder)
    file = texts_folder / "01.txt"
    windows = config(source=str(file)).windows.load(lm.tokenizer, model="the model")
    assert len(windows) == 4 and windows[0] == lm.encode(file.read_text())[:16]
    assert config(source=str(file), contexts=2).run().joint.base.sequences == 2


def test_a_plan_loads_no_model(config, model_folder, monkeypatch):
    monkeypatch.setattr(LanguageModel, "from_pretrained", None)
    plan = config().check()
    assert "tokens 13 to 16 of 4 of" in plan and "20 samples a window" in plan


def test_mistakes_are_named(config, model_folder, tmp_path):
    with pytest.raises(ConfigError, match="prefix_tokens 16 leaves nothing of length 16"):
        config(prefix_tokens=16)
    with pytest.raises(ConfigError, match="give an energy"):
        config(energy=None, by_position=True)
    with pytest.raises(DataError, match=r"nothing\.txt does not exist"):
        config(source="nothing.txt").run()
    with pytest.raises(ModelError, match="does not exist"):
        config(energy="no/such/energy").run()
    with pytest.raises(ModelError, match="holds no energy"):
        config(energy=str(model_folder)).run()
    lm = LanguageModel.from_pretrained(model_folder)
    other = LanguageModel(
        lm.model, train_tokenizer(["Another text altogether, quite another. "] * 9, vocabulary_size=290)
    )
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(VocabularyMismatch, match=r"is tokenised with 300 tokens .* but .* reads its 2\d\d"):
        config(language_model=str(tmp_path / "other"), energy=None).run()
    with pytest.raises(VocabularyMismatch, match=r"BALM .* compare models of one tokenizer only"):
        config(balm=str(tmp_path / "other")).run()
