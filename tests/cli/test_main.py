"""The front door: light, and a user's mistake is one line on stderr with exit code 2, never a traceback."""

import errno
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from functools import partial

import click
import pytest

from energylm import __version__
from energylm.cli import main as program
from energylm.cli.main import VerbGroup
from energylm.errors import DataError, NonFiniteLoss
from energylm.files import folder_lock
from energylm.verbs import table

VERBS = tuple(dict.fromkeys(name.partition(" ")[0] for name in table.VERBS))


def energylm(*arguments, **options):
    """Run the program in a process of its own."""
    command = [sys.executable, "-m", "energylm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


@pytest.fixture
def verb(monkeypatch):
    """Call `main()` with one extra verb whose body is the given function."""

    def call(body, *arguments):
        command = click.Command("trial", callback=body)
        monkeypatch.setattr(VerbGroup, "get_command", lambda *_: command)
        monkeypatch.setattr(sys, "argv", ["energylm", "trial", *arguments])
        with pytest.raises(SystemExit) as leaving:
            program.main()
        return leaving.value.code

    return call


def test_help_names_every_verb_and_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'datasets', 'pydantic', 'matplotlib', 'pyarrow', 'scipy', 'numpy'}"
    spy = (
        "import sys\nsys.argv = ['energylm', '--help']\nfrom energylm.cli.main import main\n"
        f"try:\n    main()\nfinally:\n    print('HEAVY', sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", spy], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert all(f" {name} " in done.stdout for name in VERBS)
    assert done.stderr.strip() == "HEAVY []"


def test_the_check_above_would_see_torch():
    """Teeth: the same question, asked of a process that does import torch."""
    spy = "import sys, torch; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", spy], capture_output=True, text=True).stdout.strip() == "True"


def test_help_is_quick():
    """Half a second is the promise. Counted in processor time, the best of five: other work may share the machine."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert energylm("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5


@pytest.mark.parametrize("path", [[verb] for verb in VERBS] + [["corpus", "build"], ["lm", "train"], ["models", "get"]])
def test_every_verb_has_help_with_an_example(path):
    done = energylm(*path, "--help", env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0
    assert done.stderr == ""
    if len(path) == 2 or path[0] in ("demo", "bench"):
        assert f"energylm {' '.join(path)}" in done.stdout.split("Usage:")[1].split("\n", 1)[1]


def test_version():
    done = energylm("--version")
    assert (done.returncode, done.stdout) == (0, f"energylm {__version__}\n")


def test_an_unknown_verb_is_a_usage_error():
    done = energylm("nonsense")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("energylm: there is no 'nonsense' here; known: demo, ")
    assert done.stderr.count("\n") == 1
    assert "there is no 'trian' here; did you mean 'train'?" in energylm("lm", "trian").stderr


def test_an_unknown_benchmark_names_the_known_ones():
    done = energylm("bench", "nonsense")
    assert done.returncode == 2
    known = "shared-prefix, smollm, busy, scaling, corpus"
    assert done.stderr.startswith(f"energylm: unknown benchmark 'nonsense'; known: {known}")


@pytest.mark.parametrize(("error", "code"), [(DataError("a file\nis bad"), 2), (NonFiniteLoss("a file\nis bad"), 1)])
def test_our_errors_are_one_line(verb, capfd, error, code):
    def body():
        raise error

    assert verb(body) == code
    assert capfd.readouterr() == ("", "energylm: a file is bad\n")


def test_a_full_disk_is_one_line(verb, capfd):
    def body():
        raise OSError(errno.ENOSPC, "No space left on device", "shard.bin")

    assert verb(body) == 2
    assert capfd.readouterr().err == (
        "energylm: no space left on the disk (shard.bin); free some space and run again\n"
    )


def test_other_errors_keep_their_traceback(monkeypatch):
    """Teeth for the three tests above: only what we know is turned into a line, a bug is not hidden."""

    def broken(arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(program, "run", broken)
    with pytest.raises(OSError, match="Input/output error"):
        program.main()


def test_an_interrupt_says_that_work_is_kept_only_where_it_is(verb, capfd, tmp_path):
    """Jobs that go on where they stopped hold their folder; others have nothing to go on from."""

    def keeps_nothing():
        raise KeyboardInterrupt

    def keeps():
        with folder_lock(tmp_path):
            raise KeyboardInterrupt

    assert verb(keeps_nothing) == 130
    assert capfd.readouterr().err == "energylm: interrupted\n"
    assert verb(keeps) == 130
    kept = "energylm: interrupted; what was finished is kept, run the same command to continue\n"
    assert capfd.readouterr().err == kept


def test_an_interrupted_job_with_a_folder_to_keep_blocks_says_so(model_folder, tmp_path):
    """The whole way, with a signal: `score --output` holds its folder and waits for more texts."""
    command = [sys.executable, "-m", "energylm", "score", str(model_folder), "-", "--output", str(tmp_path / "kept")]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a suite that runs in the background ignores it
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heard, **pipes) as process:
        last = time.monotonic() + 100
        while not (tmp_path / "kept" / ".lock").exists() and process.poll() is None and time.monotonic() < last:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        lines = process.stderr.read()
        assert process.wait() == 130
    assert lines.strip() == "energylm: interrupted; what was finished is kept, run the same command to continue"


@pytest.mark.parametrize("arguments", [("bench", "list"), ("--help",), ("reproduce", "--list")])
def test_a_reader_that_leaves_is_no_mistake(arguments):
    """`energylm bench list | true`: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "energylm", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("closed", "shown"), [(">&-", ""), ("2>&-", "shared-prefix"), ("<&-", "shared-prefix"), (">&- 2>&-", "")]
)
def test_closed_streams_are_no_mistake(closed, shown):
    line = f"{shlex.quote(sys.executable)} -m energylm bench list {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.partition("\n")[0] == shown


LOCALES = (
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},  # plain ASCII, arguments too
)


@pytest.mark.parametrize("locale", LOCALES, ids=["ascii", "latin-1", "C"])
@pytest.mark.parametrize("arguments", [("--help",), ("study", "new", "--help"), ("mcmc", "--help")])
def test_help_in_any_locale(locale, arguments):
    """Some help texts hold → and …; before, the encoder's traceback came in their place."""
    done = subprocess.run(
        [sys.executable, "-m", "energylm", *arguments], capture_output=True, env=os.environ | locale, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Usage: " in done.stdout
    done.stdout.decode("latin-1" if locale is LOCALES[1] else "utf-8")


def test_data_stay_what_they_are_in_a_narrow_locale(model_folder):
    """A JSON line holds ə and an emoji, which latin-1 has not: written as JSON escapes, they are read back the same."""
    text = "M\u00fcnch\u0259n \U0001f600"
    command = [sys.executable, "-m", "energylm", "lm", "sample", str(model_folder), "--prompt", text]
    done = subprocess.run(command, capture_output=True, env=os.environ | LOCALES[1], check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.decode("latin-1"))["prompt"] == text
    assert text not in done.stdout.decode("utf-8", errors="replace")  # teeth: it was not written as UTF-8


def test_an_argument_that_the_locale_cannot_read_is_one_line(model_folder):
    command = [sys.executable, "-m", "energylm", "lm", "sample", str(model_folder), "--prompt", "M\u00fcnchen"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | LOCALES[2], check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("holds bytes that are not ascii; set PYTHONUTF8=1 if they are UTF-8\n")


def test_an_unknown_config_key_names_its_neighbour(tmp_path):
    done = energylm(
        "lm", "train", str(tmp_path), "--output", str(tmp_path / "o"), "--set", "traning.steps=3", cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "unknown key 'traning'; did you mean 'training'?" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "number", "offered"),
    [
        ("energylm lm tr", 2, "plain,train\n"),
        ("energylm perplexity a b --split te", 5, "plain,test\n"),
        ("energylm perplexity a b --by", 4, "plain,--by-position\nplain,--by-samples\n"),
    ],
)
def test_shells_complete_verbs_options_and_choices(words, number, offered):
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(number), "_ENERGYLM_COMPLETE": "bash_complete"}
    program = "import sys; sys.argv = ['energylm']; from energylm.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | asked)
    assert done.stdout == offered
