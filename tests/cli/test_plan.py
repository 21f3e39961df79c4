"""`energylm plan` from the command line: measured and given machines, paper scale offline, mistakes in one line."""

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from energylm.cli.plan import plan
from energylm.errors import ConfigError

GPU = {
    "name": "a GPU",
    "matmul_gflops": 60_000,
    "memory_gigabytes_per_second": 1500,
    "operation_microseconds": 5,
    "text_megabytes_per_second": 6,
    "network_gigabytes_per_second": 20,
}


def invoke(*arguments):
    app = typer.Typer()
    app.command()(plan)
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def machine_file(tmp_path):
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(GPU))
    return str(tmp_path / "gpu.yaml")


def test_a_paper_on_a_cluster_without_its_data(machine_file, tmp_path):
    arguments = ["--scale", "paper", "--corpus", "news", "--machine", machine_file, "--nodes", 8, "--processes", 8]
    done = invoke("deng2020/table1", *arguments, "--json", tmp_path / "plan.json")
    assert done.exit_code == 0 and "of memory" in done.stdout
    found = json.loads((tmp_path / "plan.json").read_text())
    assert found["processes"] == 64 and found["seconds"] > 3600 and found["flops"] > 1e18
    assert {step["kind"] for step in found["steps"]} == {"corpus", "lm", "mlm", "negatives", "energy", "perplexity"}


def test_the_demo_on_this_machine(tmp_path):
    assert invoke("--measure", tmp_path / "here.yaml").exit_code == 0
    rates = yaml.safe_load((tmp_path / "here.yaml").read_text())
    assert rates["matmul_gflops"] > 0.1 and rates["memory_gigabytes"] > 0.5
    done = invoke("demo", "--machine", tmp_path / "here.yaml")
    assert done.exit_code == 0 and "the demo: " in done.stdout and "5 of 5 steps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a recipe"),
        (["deng2020/table9"], "unknown recipe"),
        (["demo", "--nodes", 0], "nodes"),
        (["demo", "--machine", "nowhere.yaml"], "nowhere.yaml"),
        (["demo", "--scale", "huge"], "scale"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        invoke(*arguments)
    assert "\n" not in str(error.value)
