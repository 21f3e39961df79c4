"""`energylm perplexity` as a function: the same tokens for every model, the report, and the mistakes that are named."""

import json

import pytest

from energylm import EnergyModel, LanguageModel, ResidualModel
from energylm.config.perplexity import PerplexityConfig
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.pipelines.perplexity import check_inputs, load_windows, run_perplexity

SIZES = {"length": 16, "prefix": 12, "contexts": 4, "n": 20, "position_samples": 10}


@pytest.fixture
def config(model_folder, energy_folder, corpus_folder):
    def make(**changes):
        paths = {"language_model": str(model_folder), "energy": str(energy_folder), "source": str(corpus_folder)}
        return PerplexityConfig.checked(paths | SIZES | changes)

    return make


def test_everything_in_one_table_and_one_report(config, model_folder, energy_folder, tmp_path):
    chosen = config(by_samples=True, by_position=True, balm=str(model_folder), ralm=str(model_folder))
    run = run_perplexity(chosen, output=tmp_path / "report")
    lm = LanguageModel.from_pretrained(model_folder)
    windows = load_windows(chosen, lm)
    alone = lm.perplexity(windows, prefix_tokens=12)
    assert run.base.value == pytest.approx(alone.value, rel=1e-6) and run.base.tokens == 4 * 4
    assert run.baselines["RALM"] == run.baselines["BALM"] == alone
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
    assert json.dumps(run.to_json())


def test_language_models_alone(config):
    run = run_perplexity(config(energy=None))
    assert run.joint is None and run.report is None and [row[0] for row in run.table.rows] == ["base LM"]


def test_windows_of_a_corpus_lie_within_documents_and_depend_on_the_seed(config, model_folder, corpus_folder, capsys):
    lm = LanguageModel.from_pretrained(model_folder)
    windows = load_windows(config(contexts=3), lm)
    assert windows == load_windows(config(contexts=3, n=50), lm) != load_windows(config(contexts=3, seed=1), lm)
    assert all(lm.eos_token_id not in window for window in load_windows(config(contexts=1000), lm))
    assert "1000 were asked for" in capsys.readouterr().err
    packed = load_windows(config(contexts=1000, documents="packed"), lm)
    assert any(lm.eos_token_id in window for window in packed)


def test_windows_of_a_file(config, model_folder, texts_folder):
    lm = LanguageModel.from_pretrained(model_folder)
    file = texts_folder / "01.txt"
    windows = load_windows(config(source=str(file)), lm)
    assert len(windows) == 4 and windows[0] == lm.encode(file.read_text())[:16]
    assert run_perplexity(config(source=str(file), contexts=2)).joint.base.sequences == 2


def test_a_plan_loads_no_model(config, model_folder, monkeypatch):
    monkeypatch.setattr(LanguageModel, "from_pretrained", None)
    plan = check_inputs(config())
    assert "tokens 13 to 16 of 4 of" in plan and "20 samples a window" in plan


def test_mistakes_are_named(config, model_folder, tmp_path):
    with pytest.raises(ConfigError, match="prefix 16 leaves nothing of length 16"):
        config(prefix=16)
    with pytest.raises(ConfigError, match="give an energy"):
        config(energy=None, by_position=True)
    with pytest.raises(DataError, match=r"nothing\.txt does not exist"):
        run_perplexity(config(source="nothing.txt"))
    with pytest.raises(ModelError, match="does not exist"):
        run_perplexity(config(energy="no/such/energy"))
    with pytest.raises(ModelError, match="holds no energy"):
        run_perplexity(config(energy=str(model_folder)))
    lm = LanguageModel.from_pretrained(model_folder)
    other = LanguageModel(
        lm.model, train_tokenizer(["Another text altogether, quite another. "] * 9, vocabulary_size=290)
    )
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(VocabularyMismatch, match=r"is tokenised with 300 tokens .* but .* reads its 2\d\d"):
        run_perplexity(config(language_model=str(tmp_path / "other"), energy=None))
    with pytest.raises(VocabularyMismatch, match=r"BALM .* compare models of one tokenizer only"):
        run_perplexity(config(balm=str(tmp_path / "other")))
