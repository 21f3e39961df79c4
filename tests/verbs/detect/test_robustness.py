"""The table of attacks, on a detector whose rule is known: it counts a word that attacks can hide."""

import json

import pytest
from click.testing import CliRunner

from energylm.cli.main import program
from energylm.errors import ConfigError, DataError
from energylm.verbs import MeasureRobustness
from energylm.verbs.detect.robustness import RobustnessResult

pytestmark = pytest.mark.usefixtures("ruled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ruled_texts):
    folder = tmp_path_factory.mktemp("robust")
    for kind in ("human", "machine"):
        lines = [json.dumps({"text": text}) for text in ruled_texts(kind, 60, seed=1)]
        (folder / f"{kind}.jsonl").write_text("\n".join(lines))
    return folder


def data(folder):
    return {"human": [str(folder / "human.jsonl")], "machine": [str(folder / "machine.jsonl")]}


def test_what_can_be_undone_costs_nothing_and_the_rest_is_told(folder):
    result = MeasureRobustness(detector="ruled", data=data(folder), resamples=20, seed=3).run()
    rows = {row.attack: row for row in result.attacks}
    assert list(rows) == ["none", "homoglyphs", "zero-width", "whitespace", "misspellings", "case", "swaps"]
    honest = rows["none"]
    assert honest.auroc.value > 0.95 and honest.machine_found > 0.8 and honest.human_called_machine < 0.15
    for attack in ("homoglyphs", "zero-width"):
        row = rows[attack]
        assert (row.auroc, row.machine_found, row.undone) == (honest.auroc, honest.machine_found, 1.0)
        assert row.auroc_as_it_came.value < 0.6  # the word is not there to be counted: what undoing is worth
        assert row.human_called_machine == honest.human_called_machine
    assert rows["misspellings"].auroc == rows["misspellings"].auroc_as_it_came and rows["misspellings"].undone == 0
    assert rows["misspellings"].auroc.value < honest.auroc.value
    assert rows["whitespace"].auroc.value < honest.auroc.value
    assert rows["swaps"].auroc.value > 0.9  # order does not matter to a count
    again = MeasureRobustness(detector="ruled", data=data(folder), resamples=20, seed=3).run()
    assert again == result == RobustnessResult.from_json(json.loads(json.dumps(result.to_json())))
    assert "whitespace is the worst: AUROC" in result.summary() and len(result.table.rows) == 7


def test_as_a_person_types_it(folder):
    begin = ["detect", "robustness", "ruled", "--human", str(folder / "human.jsonl")]
    machine = ["--machine", str(folder / "machine.jsonl"), "--texts", "20", "--set", "resamples=10"]
    done = CliRunner().invoke(program(), [*begin, *machine, "--attack", "case"], catch_exceptions=False)
    assert done.exit_code == 0 and "| case |" in done.stdout and "homoglyphs" not in done.stdout
    done = CliRunner().invoke(program(), [*begin, *machine, "--dry-run"], catch_exceptions=False)
    assert "would attack 20 human and 20 machine texts" in done.stdout
    with pytest.raises(DataError, match="one class only: a table of attacks needs"):
        CliRunner().invoke(program(), begin, catch_exceptions=False)
    with pytest.raises(ConfigError, match="there is no attack 'synonyms'; there are: homoglyphs"):
        CliRunner().invoke(program(), [*begin, "--attack", "synonyms"], catch_exceptions=False)
