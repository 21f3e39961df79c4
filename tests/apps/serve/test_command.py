"""`energylm serve` as a program: what it refuses, and how it leaves. The endpoints are tested beside this file."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra energylm[web]")

from energylm.apps.serve.verb import NewKey, Serve
from energylm.errors import MissingExtra


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing to serve"),
        (("--upstream", "http://127.0.0.1:1/v1"), "upstream needs an energy"),
        (("m", "--set", "limits.max_wating=3"), "did you mean 'limits.max_waiting'"),
        (("m", "--host", "0.0.0.0"), "there are no keys"),
        (("--add-key", "note"), "--add-key needs --keys, the file"),
    ],
)
def test_mistakes_are_told(energylm, arguments, says):
    code, out, err = energylm("serve", *arguments)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


def test_an_absent_extra_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"needs uvicorn, .* pip install 'energylm\[web\]'"):
        Serve(language_model="m").run()


def test_dry_run_and_keys(energylm, model_folder, tmp_path):
    code, out, _ = energylm("serve", model_folder, "--port", 0, "--dry-run")
    assert code == 0 and out.startswith("would serve the language model") and out.endswith(" at 127.0.0.1 port 0\n")
    wanted = ("serve", "--add-key", "laboratory", "--keys", tmp_path / "keys")
    code, out, _ = energylm(*wanted, "--dry-run")
    assert code == 0 and "would make a key" in out and not (tmp_path / "keys").exists()
    code, out, _ = energylm(*wanted, "--json", tmp_path / "key.json")
    key = out.strip()
    assert code == 0 and len(key) >= 32 and key not in (tmp_path / "keys").read_text(encoding="utf-8")
    assert (tmp_path / "keys").read_text(encoding="utf-8").endswith("laboratory\n")
    assert key not in (tmp_path / "key.json").read_text(encoding="utf-8")
    assert "secret" not in repr(NewKey(tmp_path, "laboratory", "secret"))


@pytest.mark.slow
def test_it_answers_what_it_has_before_it_leaves(model_folder, energy_folder):
    """SIGTERM while a request is being answered: the answer comes, no new request is taken, the exit code is 0."""
    command = [
        sys.executable,
        "-m",
        "energylm",
        "serve",
        model_folder,
        "--energy",
        energy_folder,
        "--port",
        "0",
    ]
    server = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
    try:
        line = next(line for line in server.stderr if "serving at" in line)
        url = re.search(r"http://\S+?:\d+", line)[0]
        assert "without keys" in line
        body = {"prompt": "The clerk", "n": 8, "max_tokens": 64, "seed": 1, "energy": {"proposals": 256}}
        answers = []
        asking = threading.Thread(target=lambda: answers.append(post(f"{url}/v1/completions", body)))
        asking.start()
        while health(url)["running"] == 0:
            assert asking.is_alive()
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        asking.join(120)
        assert len(answers[0]["choices"]) == 8
        assert server.wait(60) == 0 and "stopped" in server.stderr.read()
        with pytest.raises(urllib.error.URLError):
            post(f"{url}/v1/completions", body)
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def health(url):
    with urllib.request.urlopen(f"{url}/healthz", timeout=120) as answer:
        return json.load(answer)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)
