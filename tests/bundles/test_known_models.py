"""Where a name or path leads; a mistake is found at once, without asking the hub."""

from pathlib import Path

import pytest
from huggingface_hub.errors import RepositoryNotFoundError

from energylm.bundles.known_models import KNOWN_MODELS, locate
from energylm.cli.command import VerbCommand
from energylm.config.environment import OFFLINE, is_hub_name
from energylm.errors import ModelError
from energylm.verbs.table import verb_class


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("ENERGYLM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_here_comes_first(home):
    (home / "gpt2").mkdir()
    (home / "model.gguf").write_bytes(b"")
    assert locate("gpt2").is_dir() and locate(home / "gpt2") == home / "gpt2"
    assert locate("model.gguf").name == "model.gguf"


@pytest.fixture
def fetched(monkeypatch):
    """A `models get` that makes the folder, and the names that it was asked for; online."""
    names = []

    def get(name):
        names.append(name)
        KNOWN_MODELS[name].folder.mkdir(parents=True)

    monkeypatch.setattr("energylm.verbs.fitting.get_known_model", get)
    for variable in OFFLINE:
        monkeypatch.delenv(variable, raising=False)
    return names


def test_known_names_lead_home_and_are_fetched_once(fetched):
    assert locate("smollm2-135m") == KNOWN_MODELS["smollm2-135m"].folder
    assert locate("smollm2-135m").is_dir() and fetched == ["smollm2-135m"]


@pytest.mark.parametrize("variable", OFFLINE)
def test_nothing_is_fetched_offline(fetched, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    words = f"'minilm-l6' is known but not here yet, and {variable} is set; run `energylm models get minilm-l6` first"
    with pytest.raises(ModelError, match=words) as caught:
        locate("minilm-l6")
    assert fetched == [] and "\n" not in str(caught.value)
    monkeypatch.setenv(variable, "0")  # teeth: the value counts, not the name
    assert locate("minilm-l6").is_dir() and fetched == ["minilm-l6"]


def test_a_dry_run_fetches_nothing(fetched):
    """The same command without --dry-run asks for the model first."""
    words = ["smollm2-135m", "--prompt", "The"]
    command = VerbCommand(verb_class("lm sample"))
    with pytest.raises(ModelError, match="a dry run fetches nothing; run `energylm models get smollm2-135m`"):
        command.main([*words, "--dry-run"], standalone_mode=False)
    assert fetched == []
    with pytest.raises(ModelError, match=r"holds no config\.json"):  # what is fetched here is an empty folder
        command.main(words, standalone_mode=False)
    assert fetched == ["smollm2-135m"]


def test_offline_the_hub_is_not_asked(monkeypatch):
    monkeypatch.setenv(OFFLINE[0], "1")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(ModelError, match="'no-one/nothing' is not here, and the hub cannot be reached"):
        locate("no-one/nothing")


def test_what_can_be_a_name_of_the_hub():
    assert all(map(is_hub_name, ("a/b", "HuggingFaceTB/SmolLM2-135M", "my-org/model_1.5")))
    assert not any(map(is_hub_name, ("gpt2", "./a", "../a", "a/", "/a", "a/b/c", "a b/c", "a/b.gguf", "~/a", ".a/b")))


def test_a_hub_name_has_an_owner(home, monkeypatch):
    """A model that was fetched before is a name of the hub, network or none. Offline, another one is an error."""
    cached = home / "config.json"
    here = {cached.name: str(cached)}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda name, file: here.get(file))
    assert locate("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_that_cannot_be_reached_is_one_line_at_once(monkeypatch, offline):
    """Without the question to the hub transformers would try six times, for half a minute."""
    asked = []

    def model_info(hub, name, *, timeout):
        asked.append((name, timeout))
        raise ConnectionRefusedError("no route") if offline else not_found()

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    message = "the hub cannot be reached; give" if offline else r"cannot be had from the hub \(nobody has it\); give"
    with pytest.raises(ModelError, match=message) as caught:
        locate("nobody/nothing")
    assert asked == [("nobody/nothing", 5.0)] and "\n" not in str(caught.value) and len(str(caught.value)) < 200


def not_found():
    """The hub's own error, whose constructor wants a response."""
    error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    Exception.__init__(error, "nobody has it")
    return error


@pytest.mark.parametrize(
    "wrong", ["gpt2", "./gpt2", "/no/such/model", "a/b/c", "runs/tiny", "gpt2/", "model.gguf", "a/b.gguf", "two words"]
)
def test_what_looks_like_a_path_or_is_bare_never_reaches_the_hub(home, monkeypatch, wrong):
    monkeypatch.setattr("energylm.bundles.known_models._ask_hub", lambda name, what: pytest.fail(f"asked for {name}"))
    (home / "runs").mkdir()
    with pytest.raises(ModelError, match="does not exist; give a model folder"):
        locate(wrong)


def made(folder, marker="energylm.json"):
    folder.mkdir(parents=True)
    (folder / marker).write_text("{}")
    return folder


def test_a_runs_folder_leads_to_its_model(home):
    model = made(home / "my-lm" / "model")
    assert locate("my-lm") == Path("my-lm/model") and locate(home / "my-lm") == model == locate(model)
    assert locate(made(home / "other", "config.json")) == home / "other"
    made(home / "other" / "model")  # a model folder is a model, whatever else it holds
    assert locate(home / "other") == home / "other"
    (home / "corpus" / "model").mkdir(parents=True)  # no model in it
    assert locate(home / "corpus") == home / "corpus"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("smollm-135m", "smollm2-135m"),
        ("MiniLM-l6", "minilm-l6"),
        ("my-ln", "my-lm"),
        ("runs/tinny", "runs/tiny"),
        ("tiny.guf", "tiny.gguf"),
    ],
)
def test_a_misspelling_names_its_nearest_neighbour(home, wrong, near):
    made(home / "my-lm" / "model")
    made(home / "runs" / "tiny", "config.json")
    (home / "tiny.gguf").touch()
    (home / "my-ln2").mkdir()  # no model
    with pytest.raises(ModelError, match=rf"; did you mean '{near}'\?$"):
        locate(wrong)


def test_a_corpus_is_near_where_a_tokenizer_is_asked_for(home):
    (home / "my-corpus" / "tokenizer").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"^tokenizer 'my-corpu' does not exist; .*did you mean 'my-corpus'\?$"):
        locate("my-corpu", what="tokenizer")
    with pytest.raises(ModelError, match=r"OWNER/NAME of the hub$"):
        locate("my-corpu")


def test_what_is_like_nothing_has_no_neighbour():
    with pytest.raises(ModelError, match=r"OWNER/NAME of the hub$"):
        locate("zzzzzz")
