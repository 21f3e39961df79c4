"""Write outputs for new sources: `energylm seq2seq decode`. An empty line stays an empty line."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.seq2seq import BEAM, DecodingConfig
from energylm.errors import DataError
from energylm.files import write_text
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.tables import Table
from energylm.verbs.seq2seq.evaluate import UsesSeq2Seq
from energylm.verbs.verb import Positional

if TYPE_CHECKING:
    from energylm.bundles.seq2seq_model import Seq2SeqModel
    from energylm.jobs.costs import Counted, Surroundings

BATCHES_AT_ONCE = 8  # lines of so many batches are sorted by length before they are cut
STDIN = "-"
OUTPUTS = "outputs.txt"  # of a step of a recipe, which others read


@dataclass(frozen=True)
class DecodedLines(Record):
    outputs: list[str]  # in the order of the sources

    @property
    def table(self) -> Table:
        return Table(["output"], [[line] for line in self.outputs])


class DecodeSeq2Seq(UsesSeq2Seq):
    """Print the tags or the translation of every line, in order."""

    examples = (
        'echo "Ada Lovelace was born in London ." | energylm seq2seq decode runs/ner/model -',
        "energylm seq2seq decode runs/mt/model test.de --decode beam --beam 5 --set decoding.length_exponent=1",
        "energylm seq2seq decode runs/mt/model test.de --beam 20 --nbest 20 > test.nbest",
    )
    shortcuts: ClassVar = UsesSeq2Seq.search
    apart_from: ClassVar = frozenset({"batch"})
    product = OUTPUTS

    source: Annotated[str, Positional("FILE|-")] = Field(
        STDIN, description="A sentence a line, a tagger's words apart by white space; - is standard input."
    )
    nbest: int | None = Field(
        None,
        ge=1,
        description="Print so many different outputs of the beam, each as a line that `energylm rerank` reads: number "
        "from 0 ||| output ||| ||| score.",
    )
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _lists_come_from_a_beam(self) -> Self:
        if self.nbest is not None and (self.decoding.method != BEAM or self.decoding.beam < self.nbest):
            raise ValueError(
                f"--nbest {self.nbest} came with a {self.decoding.method} of {self.decoding.beam}; add --decode beam "
                f"--beam {self.nbest}"
            )
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        model, path = self._open()
        origin = "standard input" if self.source == STDIN else path
        return f"would decode {origin} by {self.decoding.method} with {model.name}"

    def run(self, job: Job = DEFAULT_JOB) -> DecodedLines:
        outputs = []
        for line in self.lines():
            outputs.append(line)
            if job.emit is not None:
                job.emit(line)
        if job.output is not None:
            write_text(job.output / OUTPUTS, "".join(f"{line}\n" for line in outputs))
        return DecodedLines(outputs)

    def cost(self, around: "Surroundings") -> "Counted | None":
        from energylm.verbs.seq2seq.costs import count_decoding

        return None if self.source == STDIN else count_decoding(self, around)

    def lines(self) -> Iterator[str]:
        """Output lines, in the order of the sources, as they are written."""
        from energylm.data.text_files import decoded_lines
        from energylm.progress import progress

        model, path = self._open()
        done = 0
        with progress("decoding", unit="sentence") as bar:
            for chunk in _chunks((line for _, line in decoded_lines(path)), self.batch * BATCHES_AT_ONCE):
                written = [number for number, line in enumerate(chunk) if line.strip()]
                sources = [chunk[number] for number in written]
                bar.advance(len(chunk))
                if self.nbest is None:
                    outputs = dict(zip(written, model.decode(sources, self.decoding, batch=self.batch), strict=True))
                    yield from (outputs.get(number, "") for number in range(len(chunk)))
                else:
                    lists = model.best_outputs(sources, self.decoding, count=self.nbest, batch=self.batch)
                    for number, members in zip(written, lists, strict=True):
                        yield from (f"{done + number} ||| {output} |||  ||| {score:.6f}" for output, score in members)
                done += len(chunk)

    def shown(self, result: DecodedLines) -> str:
        return ""  # each line was written as it came

    def _open(self) -> "tuple[Seq2SeqModel, Path]":
        from energylm.bundles.seq2seq_model import Seq2SeqModel

        path = Path("/dev/stdin" if self.source == STDIN else self.source)
        if self.source != STDIN and not path.is_file():
            raise DataError(f"{path} does not exist or is no file; give a file of sentences, or - for standard input")
        model = Seq2SeqModel.from_pretrained(self.model)
        model.check(self.decoding)
        return model, path


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(lines)
    while chunk := list(islice(iterator, size)):
        yield chunk
