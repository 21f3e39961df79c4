"""Progress is for people: nothing for short work, a line now and then in a log, a bar on a terminal; never stdout."""

import io
import math
import sys

import pytest

from energylm import progress as progress_module
from energylm.progress import format_seconds, progress, say


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def work(clock, *, seconds, steps, **options):
    with progress("sampling", **options) as running:
        for _ in range(steps):
            clock.now += seconds / steps
            running.advance(10, note="loss 2.5")


def test_short_work_shows_nothing(clock, capsys):
    work(clock, seconds=1.9, steps=100, total=1000, unit="token")
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_now_and_then_with_rate_and_time_left(clock, capsys):
    """60 s for 1,000 tokens in 100 steps: a line at 15, 30, 45 and 60 s; at 15 s 16.7 tokens/s and 45 s left."""
    work(clock, seconds=60, steps=100, total=1000, unit="token")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and 3 <= len(lines) <= 4
    assert lines[0] == "sampling: 250/1,000 (25%), 16.7 token/s, 0:45 left, loss 2.5"


def test_without_a_total_there_is_a_rate_and_no_time_left(clock, capsys):
    work(clock, seconds=16, steps=16, unit="document")
    assert capsys.readouterr().err == "sampling: 150, 10.0 document/s, loss 2.5\n"


def test_a_terminal_gets_a_bar_that_goes_away(clock, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    work(clock, seconds=4, steps=8, total=80, unit="token")
    assert "80/80 (100%), 20.0 token/s, 0:00 left, loss 2.5" in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""
    sys.stderr.truncate(0)
    work(clock, seconds=1, steps=8, total=80, unit="token")
    assert sys.stderr.getvalue() == ""


def test_a_note_with_brackets_is_shown_as_it_is(clock, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with progress("reading", unit="file") as running:
        clock.now += 3
        running.advance(1, note="[bold]a.txt")
    assert "[bold]a.txt" in sys.stderr.getvalue()


def test_the_bar_stops_when_the_work_fails(clock, monkeypatch):
    stopped = []
    monkeypatch.setattr(progress_module.Progress, "close", lambda self: stopped.append(True))
    with pytest.raises(RuntimeError), progress("failing", unit="step"):
        raise RuntimeError
    assert stopped == [True]


def test_nothing_done_yet_divides_by_nothing(clock):
    with progress("waiting", total=10, unit="step") as running:
        assert running.line() == "waiting: 0/10 (0%), 0.0 step/s, ? left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.4, "0:59"),
        (59.6, "1:00"),
        (61, "1:01"),
        (3600, "1:00:00"),
        (90_061, "25:01:01"),
        (math.inf, "?"),
    ],
)
def test_seconds_for_people(seconds, text):
    assert format_seconds(seconds) == text


def test_messages_go_to_stderr(capsys):
    say("done")
    assert capsys.readouterr() == ("", "done\n")
