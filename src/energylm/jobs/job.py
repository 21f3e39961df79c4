"""What surrounds a verb when it runs: where its files go, where its blocks are done, who reads its lines.

None of it changes a result. A verb gets it beside its own options: `Perplexity(…).run(Job(output=Path("out")))`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from energylm.config.environment import HERE, EngineConfig


@dataclass(frozen=True)
class Job:
    output: Path | None = None  # a folder for the product or the report, and for what a killed run goes on from
    overwrite: bool = False  # replace what was made otherwise
    engine: EngineConfig = HERE
    emit: Callable[[str], None] | None = None  # takes each line of a verb that writes as it goes; None collects only

    @property
    def folder(self) -> Path:
        """The output of a verb that needs one."""
        if self.output is None:
            from energylm.errors import ConfigError

            raise ConfigError("this needs a folder for what it makes; give --output FOLDER, or Job(output=…) in Python")
        return self.output


DEFAULT_JOB = Job()
