"""Progress with rate and time left, on stderr, so that stdout stays data.

On a terminal a bar moves; elsewhere (a log file, CI) one line is written every few seconds. Work that ends within two
seconds shows nothing.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SHOW_AFTER_SECONDS = 2.0
LOG_EVERY_SECONDS = 15.0
_collecting: list[list[str]] = []


class Progress:
    """Counts units of work. `advance(n)` after n units; `note` is a short text shown at the end (loss, file name)."""

    def __init__(self, what: str, *, total: float | None, unit: str) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.done, self.note = 0.0, ""
        self.started = self._shown = time.monotonic()
        self._bar: _TerminalBar | None = None

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        self.done += amount
        self.note = self.note if note is None else note
        now = time.monotonic()
        if now - self.started < SHOW_AFTER_SECONDS:
            return
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = _TerminalBar(self)
            self._bar.update(self)
        elif now - self._shown >= LOG_EVERY_SECONDS:
            self._shown = now
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = self.done / seconds
        parts = [f"{self.what}: {self.done:,.0f}"]
        if self.total:
            left = (self.total - self.done) / rate if rate else float("inf")
            parts = [f"{self.what}: {self.done:,.0f}/{self.total:,.0f} ({self.done / self.total:.0%})"]
            parts.append(f"{format_seconds(left)} left")
        parts.insert(1, f"{rate:,.1f} {self.unit}/s")
        return ", ".join(parts + ([self.note] if self.note else []))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class Counter(Progress):
    """Counts and shows nothing: for a worker whose terminal nobody watches."""

    def __init__(self) -> None:
        super().__init__("", total=None, unit="")

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        self.done += amount


class _TerminalBar:
    def __init__(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._rich = RichProgress(
            BarColumn(bar_width=24), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
        )
        self._task = self._rich.add_task("", total=progress.total)
        self._rich.start()

    def update(self, progress: Progress) -> None:
        from rich.markup import escape

        self._rich.update(self._task, completed=progress.done, description=escape(progress.line()))

    def stop(self) -> None:
        self._rich.stop()


@contextmanager
def progress(what: str, *, total: float | None = None, unit: str, within: Progress | None = None) -> Iterator[Progress]:
    """`with progress("sampling", total=n, unit="token") as p: ... p.advance(k)`. Work that is part of a larger piece
    advances that piece's bar, `within`, and has none of its own."""
    if within is not None:
        yield within
        return
    running = Progress(what, total=total, unit=unit)
    try:
        yield running
    finally:
        running.close()


def say(message: str) -> None:
    """A line for the person at the terminal, on stderr."""
    if _collecting:
        _collecting[-1].append(message)
    else:
        print(message, file=sys.stderr, flush=True)


@contextmanager
def collected() -> Iterator[list[str]]:
    """Within, what is said is collected and not shown: a worker hands it to whoever sits at the terminal."""
    messages: list[str] = []
    _collecting.append(messages)
    try:
        yield messages
    finally:
        _collecting.remove(messages)


def format_seconds(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
