"""`energylm generate` as a function: three methods, one face."""

import json

import pytest

from energylm import Energy, EnergyModel, LanguageModel, ResidualModel
from energylm.bundles.model_folder import weights_sha256
from energylm.errors import ConfigError
from energylm.jobs.job import Job
from energylm.verbs import Perplexity
from energylm.verbs.joint.generate import Generate


@pytest.fixture
def config(model_folder, energy_folder):
    def make(**changes):
        values = {
            "language_model": str(model_folder),
            "energy": str(energy_folder),
            "prompt": ["The clerk", "A sailor"],
            "sampling": {"n": 8, "max_new_tokens": 3, "stop_at_eos": False},
            "next_tokens": {"candidates": 4, "n": 2, "keep": 3},
        }
        return Generate.checked(values | changes)

    return make


def test_joint_sampling(config, model_folder, energy_folder):
    results = config().run().results
    assert [result.prompt for result in results] == ["The clerk", "A sailor"]
    joint = ResidualModel(LanguageModel.from_pretrained(model_folder), EnergyModel.from_pretrained(energy_folder))
    direct = joint.sample_batch(["The clerk", "A sailor"], config().sampling)
    assert [result.result.text for result in results] == [sample.text for sample in direct]
    assert results[0].shown() == f"The clerk{direct[0].text}\n"
    assert results[0].facts().startswith("8 candidates worth ") and "kept: " in results[0].facts()
    kept = json.loads(json.dumps(results[0].to_json()))
    pool = kept["result"]["pools"][0]
    assert len(pool["energy"]) == len(pool["tokens"]) == 8 and kept["prompt"] == "The clerk"
    assert pool["ess"] == kept["result"]["ess"] == pytest.approx(direct[0].ess)


def test_token_by_token(config):
    (first, _) = config(method="autoregressive").run().results
    assert len(first.result.tokens) == 3 and first.shown() == f"The clerk{first.result.text}\n"
    assert first.facts() == "4 candidates with 2 completions each, for each of 3 tokens"
    assert len(first.to_json()["result"]["tables"]) == 3


def test_chat(config, model_folder, energy_folder, tmp_path):
    """Each prompt is a user's message; the answer stands alone, and equals what Python gives for the same chat."""
    lm = LanguageModel.from_pretrained(model_folder)
    lm.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    lm.save_pretrained(tmp_path / "chatty")
    shown = []
    chat = config(language_model=str(tmp_path / "chatty"), chat=True)
    results = chat.run(Job(emit=shown.append)).results
    joint = ResidualModel(
        LanguageModel.from_pretrained(tmp_path / "chatty"), EnergyModel.from_pretrained(energy_folder)
    )
    direct = joint.chat_batch([[{"role": "user", "content": prompt}] for prompt in chat.prompt], chat.sampling)
    assert [result.result.tokens for result in results] == [sample.tokens for sample in direct]
    assert shown == [f"{sample.text}\n" for sample in direct]
    with pytest.raises(ConfigError, match="chats are answered by the joint method"):
        config(chat=True, method="next-token")


def test_next_token_table(config):
    (first, _) = config(method="next-token").run().results
    assert first.shown().count("\n| base |") == first.shown().count("\n| joint |") == 3
    assert sum(entry["probability"] for entry in first.to_json()["result"]["joint"]) == pytest.approx(1)


def test_an_energy_made_for_another_model_is_doubted(config, energy_folder, model_folder, tmp_path, capsys):
    energy = EnergyModel.from_pretrained(energy_folder)
    for sha256, doubted in ((weights_sha256(model_folder), False), ("0" * 64, True)):
        energy.provenance["sources"] = [
            {"generator": {"name": "a certain model", "sha256": sha256}, "negatives": {"truncation": {}}}
        ]
        energy.save_pretrained(tmp_path / "energy")
        warning = config(energy=str(tmp_path / "energy")).run().results[0].result.warning
        assert ("trained against a certain model (weights 000000000000)" in warning) == doubted
    assert capsys.readouterr().err.count("a certain model") == 1


def test_a_plan_loads_no_model(config, monkeypatch):
    monkeypatch.setattr(LanguageModel, "from_pretrained", None)
    assert "would draw 8 candidates of 3 tokens" in config().check()
    assert "would draw 2 completions of 4 next tokens" in config(method="next-token").check()


def test_scores_that_have_a_name_or_a_file(config, model_folder, tmp_path):
    """What `--energy` takes is what `Energy.load` takes, at `--beta`; forbidden candidates are counted, never kept."""
    (tmp_path / "wanted.yaml").write_text(f"parts:\n  - energy: scorer:{model_folder}\n  - energy: pattern:[aeiou]\n")
    wanted = str(tmp_path / "wanted.yaml")
    first, second = config(energy=wanted, beta=4.0).run().results
    lm = LanguageModel.from_pretrained(model_folder)
    direct = ResidualModel(lm, Energy.load(wanted, beta=4.0)).sample_batch(["The clerk", "A sailor"], config().sampling)
    assert [first.result.text, second.result.text] == [sample.text for sample in direct]
    assert any(letter in first.result.text for letter in "aeiou") and "forbidden, kept: " in first.facts()
    assert "inf" in json.loads(json.dumps(first.to_json()))["result"]["pools"][0]["energy"]
    plain = config(energy=f"scorer:{model_folder}", beta=0.0).run().results[0].result
    assert plain.ess == pytest.approx(8)  # β = 0 is the language model
    assert "choose by pattern:x" in config(energy="pattern:x").check()
    with pytest.raises(ConfigError, match="no kind of energy 'patern'; did you mean 'pattern'"):
        config(energy="patern:x").check()


def test_perplexity_under_a_named_score(model_folder, corpus_folder, tmp_path):
    """Every text satisfies the constraint, so the joint model is the language model; runs are kept by its name."""
    sizes = {"length": 16, "prefix_tokens": 12, "contexts": 2, "n": 4, "split": "valid"}
    verb = Perplexity(language_model=str(model_folder), source=str(corpus_folder), energy="length:0-", **sizes)
    result = verb.run(Job(output=tmp_path / "run"))
    assert result.joint.lower == pytest.approx(result.joint.base.value, rel=1e-5)
    assert verb.run(Job(output=tmp_path / "run")).joint.lower == result.joint.lower
