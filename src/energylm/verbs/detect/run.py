"""Verdicts on texts of unknown writers: `energylm detect run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.detect import Strings, TextFormat
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.detect.judging import Detections

STDIN = "-"


class RunDetector(Verb):
    """Human, machine, or an abstention with its reason: a JSON line a text, with the scores of its blocks.

    Standard input is one text, unless --format says lines or jsonl. With --output finished portions of 512 texts are
    kept, and a killed run goes on when run again.
    """

    examples = (
        "energylm detect run runs/detector/model essay.txt --table",
        "energylm detect run runs/detector/model submissions/ --html submissions.html > verdicts.jsonl",
        "cat article.txt | energylm detect run runs/detector/model -",
    )
    writes = "optional"
    blocks = True
    apart_from: ClassVar[frozenset[str]] = frozenset({"table", "html"})

    detector: Annotated[str, Positional("DETECTOR")] = Field(
        description="A detector's folder (OUTPUT/model of `energylm detect train`)."
    )
    files: Annotated[Strings, Positional("FILE|FOLDER|-")] = Field(
        (), description="Texts: .txt, .jsonl, .json, folders; - is standard input."
    )
    text: Strings = Field((), description="A text itself.")
    format: TextFormat = Field(
        "auto", description="auto (by ending), text (a file is a text), lines (a line is a text), jsonl."
    )
    field: str = Field("text", description="The JSON field that holds the text.")
    max_tokens: int | None = Field(
        None, ge=1, description="Read no more than so many tokens of each text, from its beginning."
    )
    table: bool = Field(False, description="Print a table for people, not JSON lines.")
    html: Path | None = Field(None, description="Write a page on which the blocks of each text are coloured.")

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if not self.files and not self.text:
            raise ValueError("no text came; give a file, a folder, --text, or - for standard input")
        return self

    @property
    def paths(self) -> list[str]:
        return ["/dev/stdin" if file == STDIN else file for file in self.files]

    @property
    def text_format(self) -> TextFormat:
        """Standard input is one text, unless something else is said."""
        return "text" if STDIN in self.files and self.format == "auto" else self.format

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate
        from energylm.errors import ConfigError

        missing = next((path for path in self.paths if not Path(path).expanduser().exists()), None)
        if missing is not None:
            raise ConfigError(f"{missing} does not exist; give a file or a folder")
        return f"would judge {len(self.text)} texts and {len(self.files)} files or folders with {locate(self.detector)}"

    def run(self, job: Job = DEFAULT_JOB) -> "Detections":
        from energylm.verbs.detect.judging import judge

        return judge(self, job)

    def shown(self, result: "Detections") -> str:
        from energylm.verbs.detect.judging import json_lines, rich_table

        return rich_table(result) if self.table else json_lines(result)
