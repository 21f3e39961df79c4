"""One family of errors. Each says what was wrong, what came, what was expected, and the cure, in one line.

The command line prints the line and leaves with the error's `exit_code`: 2 for a user's mistake, 1 for a failed run.

What only some commands need is an extra of the package (pyproject.toml says which); `extra` stands around its imports.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class EnergyLMError(Exception):
    """Base of everything energylm raises on purpose."""

    exit_code = 2


class ConfigError(EnergyLMError):
    """A configuration that cannot be used: unknown key, value out of range, contradiction."""


class TooFewAccepted(ConfigError):
    """A sampler refused more candidates than it may, which is a matter of chance: other random numbers may do."""


class DataError(EnergyLMError):
    """A file or corpus that cannot be read as what it claims to be."""


class DiskFull(EnergyLMError):
    """No space left while writing; nothing half-written stays behind."""


class ModelError(EnergyLMError):
    """A model folder or name that cannot serve the purpose."""


class VocabularyMismatch(ModelError):
    """Two parts that must share a vocabulary do not."""


class CheckpointError(EnergyLMError):
    """A checkpoint that is missing, damaged or made by another configuration."""


class BusyError(EnergyLMError):
    """Another process holds the output folder."""


class NonFiniteLoss(EnergyLMError):
    """Training diverged. Names the step and the last good checkpoint."""

    exit_code = 1


class WorkerLost(EnergyLMError):
    """Workers of a cluster die again and again on the same work."""

    exit_code = 1


class MissingExtra(EnergyLMError):
    """A package that this piece of work needs is not installed; names the extra that brings it."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports of what the extra `name` brings: `with extra("report"): from matplotlib.figure import Figure`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "energylm"):  # a module of ours: no installation would bring it
            raise
        raise MissingExtra(f"this needs {package}, which is not installed: pip install 'energylm[{name}]'") from None
