"""Write outputs for new sources: `energylm seq2seq decode`. An empty line stays an empty line."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.config.seq2seq import DecodeSeq2SeqConfig
from energylm.data.readers.utf8 import decoded_lines
from energylm.errors import DataError
from energylm.progress import progress

BATCHES_AT_ONCE = 8  # lines of so many batches are sorted by length before they are cut


def plan_decode(config: DecodeSeq2SeqConfig) -> str:
    model, path = _open(config)
    decoding = config.decoding
    return f"would decode {path if config.source != '-' else 'standard input'} by {decoding.method} with {model.name}"


def decode_seq2seq(config: DecodeSeq2SeqConfig) -> Iterator[str]:
    """Output lines, in the order of the sources, as they are written."""
    model, path = _open(config)
    lines = (line for _, line in decoded_lines(path))
    with progress("decoding", unit="sentence") as bar:
        for chunk in _chunks(lines, config.batch * BATCHES_AT_ONCE):
            written = [number for number, line in enumerate(chunk) if line.strip()]
            outputs = [""] * len(chunk)
            decoded = model.decode([chunk[n] for n in written], config.decoding, batch=config.batch)
            for number, output in zip(written, decoded, strict=True):
                outputs[number] = output
            bar.advance(len(chunk))
            yield from outputs


def _open(config: DecodeSeq2SeqConfig) -> tuple[Seq2SeqModel, Path]:
    path = Path("/dev/stdin" if config.source == "-" else config.source)
    if config.source != "-" and not path.is_file():
        raise DataError(f"{path} does not exist or is no file; give a file of sentences, or - for standard input")
    model = Seq2SeqModel.from_pretrained(config.model)
    model.check(config.decoding)
    return model, path


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(lines)
    while chunk := list(islice(iterator, size)):
        yield chunk
