"""The program `energylm`: argv → verb. Light: nothing here or in its neighbours imports torch at load time.

A user's mistake is one line on stderr and exit code 2; never a traceback.
"""

import codecs
import errno
import io
import json
import os
import sys
from typing import cast

from energylm.cli.groups import INTERRUPTED, run
from energylm.cli.waiting import set_waiting
from energylm.errors import ConfigError, EnergyLMError

STDERR = 2  # its file descriptor


def main() -> None:
    _prepare_streams()
    set_waiting()
    try:
        _refuse_unreadable_arguments()
        run(sys.argv[1:])
        sys.exit(0)
    except EnergyLMError as error:
        _leave(str(error), error.exit_code)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _leave(f"no space left on the disk ({error.filename or 'unknown file'}); free some space and run again", 2)
        if error.filename is not None:  # a path the user gave: no such file, no permission, a folder for a file
            _leave(f"{error.filename}: {error.strerror}; check the path and its permissions", 2)
        raise
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            _leave("; ".join(["interrupted", *_notes(leaving)]), INTERRUPTED)
        _flush_stdout()
        raise


def _leave(message: str, exit_code: int) -> None:
    _flush_stdout()
    print(f"energylm: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(exit_code)


def _notes(error: BaseException | None) -> list[str]:
    """What was noted on an exception or on those it came from."""
    notes: list[str] = []
    while error is not None:
        notes += getattr(error, "__notes__", [])
        error = error.__cause__ or error.__context__
    return list(dict.fromkeys(notes))


def _prepare_streams() -> None:
    """Three open streams, of which stdout can write any text, whatever the locale."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:  # closed: `>&-`
        pass
    os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = sys.stdin or open(0), sys.stdout or open(1, "w"), sys.stderr or open(2, "w")
    codecs.register_error("json", _as_json)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="json")  # as JSON writes them: what is inside a string stays what it is


def _as_json(error: UnicodeError) -> tuple[str, int]:
    """What stands in the place of letters that a stream cannot write, and where writing goes on."""
    refused = cast(UnicodeEncodeError, error)  # the handler is given to a stream that is written to
    return json.dumps(refused.object[refused.start : refused.end])[1:-1], refused.end


def _refuse_unreadable_arguments() -> None:
    """Bytes that the locale cannot read arrive as lone surrogates, which no model and no JSON file takes."""
    for argument in sys.argv[1:]:
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            raise ConfigError(
                f"argument {argument!r} holds bytes that are not {sys.getfilesystemencoding()}; set PYTHONUTF8=1 if "
                "they are UTF-8"
            )


def _flush_stdout() -> None:
    """A reader that has left (`| head -1`) is no mistake; unless it is noticed here, Python complains at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
