"""Closed configs: every mistake is one `ConfigError` line that names where, what came, and the nearest right thing."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError, model_validator

from energylm.config import Config, load_config
from energylm.config.environment import data_folder, home_folder
from energylm.config.sampling import Truncation
from energylm.errors import ConfigError, DataError


class Adam(Config):
    kind: Literal["adam"] = "adam"
    learning_rate: float = Field(1e-3, gt=0, description="Step size.")


class Momentum(Config):
    kind: Literal["momentum"] = "momentum"
    momentum: float = Field(0.9, description="How much of the last step stays.")


class Job(Config):
    steps: int = Field(10, ge=1, description="How long.")
    warmup_steps: int = Field(0, ge=0, description="How long of that is warm-up.")
    name: str = Field("job", description="What to call it.")
    optimizer: Adam = Field(Adam(), description="How to step.")
    backup: Adam | None = Field(None, description="Another way.")
    stages: list[Adam] = Field([], description="One after the other.")
    named: dict[str, Adam] = Field({}, description="By name.")
    either: Annotated[Adam | Momentum, Field(discriminator="kind")] = Adam()

    @model_validator(mode="after")
    def _warmup_fits(self):
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} exceeds steps {self.steps}; shorten it")
        return self


class Strict(Config):
    folder: str = Field(description="Where.")


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def complaint(config_class, path=None, **options):
    with pytest.raises(ConfigError) as caught:
        load_config(config_class, path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_then_file_then_flags_then_settings(file):
    path = file("steps: 20\nname: from file\noptimizer:\n  learning_rate: 0.5\n")
    flags = {"name": "from flag", "steps": None, "optimizer.learning_rate": 0.25}
    job = load_config(Job, path, overrides=flags, settings=["optimizer.learning_rate=1e-4", "warmup_steps=2"])
    assert (job.steps, job.name, job.optimizer.learning_rate, job.warmup_steps) == (20, "from flag", 1e-4, 2)
    assert load_config(Job, file("")) == load_config(Job) == Job()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name=plain words", {"name": "plain words"}),
        ("name=a=b", {"name": "a=b"}),
        ('name="17"', {"name": "17"}),
        ("backup.learning_rate=2", {"backup": Adam(learning_rate=2)}),
        ("backup=null", {"backup": None}),
        ("backup=", {"backup": None}),
        ("stages=[{learning_rate: 1}, {}]", {"stages": [Adam(learning_rate=1), Adam()]}),
        ("named.x.learning_rate=3", {"named": {"x": Adam(learning_rate=3)}}),
        ("either={kind: momentum}", {"either": Momentum()}),
    ],
)
def test_forms_of_set(setting, value):
    assert load_config(Job, settings=[setting]) == Job(**value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["stepps=3"], "--set: unknown key 'stepps'; did you mean 'steps'?"),
        (["optimizer.learning_rat=3"], "unknown key 'optimizer.learning_rat'; did you mean 'optimizer.learning_rate'?"),
        (["backup.larning_rate=3"], "unknown key 'backup.larning_rate'; did you mean 'backup.learning_rate'?"),
        (["stages=[{}, {learning_rte: 1}]"], "did you mean 'stages.1.learning_rate'?"),
        (["named.x.learning_rte=1"], "did you mean 'named.x.learning_rate'?"),
        (["either={kind: momentum, momentun: 1}"], "did you mean 'either.momentum.momentum'?"),
        (["optimizer.zzz=1"], "unknown key 'optimizer.zzz'; known keys: kind, learning_rate"),
        (["steps"], "--set 'steps' is not of the form key=value"),
        (["=3"], "--set '=3' is not of the form key=value"),
        (["steps=[1"], "--set steps: '[1' is not a YAML value"),
        (["steps=many"], "steps: Input should be a valid integer, unable to parse string as an integer (came 'many')"),
        (["steps=0"], "steps: Input should be greater than or equal to 1 (came 0)"),
        (["steps=1", "steps.x=1"], "key 'steps.x': 'steps' is a plain value, it has no keys below it"),
        (["either.kind=sgd"], "'adam', 'momentum'"),
        (["warmup_steps=30"], "warmup_steps 30 exceeds steps 10; shorten it"),
        (["steps=0", "name=[]"], "; name: Input should be a valid string (came [])"),  # all mistakes at once
    ],
)
def test_mistakes_in_settings(settings, says):
    assert says in complaint(Job, settings=settings)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stepps: 3", "job.yaml: unknown key 'stepps'; did you mean 'steps'?"),
        ("optimizer: {learning_rate: -1}", "optimizer.learning_rate: Input should be greater than 0 (came -1)"),
        ("steps: [", "job.yaml is not YAML"),
        ("steps: 1\nsteps: 2", "key 'steps' comes twice"),
        ("optimizer:\n  learning_rate: 1\n  learning_rate: 2", "key 'learning_rate' comes twice"),
        ("- steps", "must hold `key: value` lines, not a list"),
        ("just words", "must hold `key: value` lines, not a str"),
        ("1: 2", "Keys should be strings"),
        ("? [a, b]\n: 1", "is not YAML"),
        (b"name: \xff", "is not YAML"),
        ("name: !!python/object/apply:os.getcwd []", "is not YAML"),  # a config cannot call anything
    ],
)
def test_mistakes_in_files(file, text, says):
    message = complaint(Job, file(text))
    assert says in message and "job.yaml" in message


def test_files_that_cannot_be_read(tmp_path):
    assert complaint(Job, tmp_path / "missing.yaml") == f"config file {tmp_path / 'missing.yaml'} does not exist"
    assert "Is a directory" in complaint(Job, tmp_path)


def test_a_missing_key_and_a_long_value_stay_short():
    assert complaint(Strict) == "the configuration: key 'folder' is missing, it has no default"
    assert len(complaint(Strict, overrides={"folder": list(range(100_000))})) < 200


def test_configs_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Job().steps = 3


@pytest.mark.parametrize(
    ("truncation", "is_identity"),
    [({}, True), ({"top_p": 1.0}, True), ({"top_k": 5}, False), ({"top_p": 0.9}, False), ({"temperature": 2}, False)],
)
def test_truncation_knows_when_it_does_nothing(truncation, is_identity):
    assert Truncation(**truncation).is_identity is is_identity


@pytest.mark.parametrize("setting", ["top_k=0", "top_p=0", "top_p=1.1", "temperature=0", "temperature=.nan"])
def test_truncation_refuses_what_is_no_proposal(setting):
    assert setting.split("=")[0] in complaint(Truncation, settings=[setting])


def test_places(tmp_path, monkeypatch):
    monkeypatch.setenv("ENERGYLM_HOME", "~/things")
    assert home_folder() == home_folder().home() / "things"
    monkeypatch.delenv("ENERGYLM_HOME")
    assert home_folder().name == "energylm"
    monkeypatch.setenv("ENERGYLM_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    for wrong in ("", str(tmp_path / "missing")):
        monkeypatch.setenv("ENERGYLM_DATA", wrong)
        with pytest.raises(DataError, match="ENERGYLM_DATA"):
            data_folder()
