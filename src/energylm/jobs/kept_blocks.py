"""Results of blocks that outlive the process: a killed run does its finished blocks not again.

OUTPUT/blocks/KEY/block-00000.json     one for each finished block

KEY is a hash of the job: the model, how it is used, the format. A file says what its block was (a hash), so that other
texts under the same settings are noticed, and has a hash of its own content, so that damage is. Both are said, and the
block is done again. The engine does not matter: what one began, the other finishes.

Relations  `engine` does the blocks; `energylm rerank` keeps growing lists of scores of its own, and the drafts of
           `data.negatives_shards` are shards of their own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.errors import DataError
from energylm.files import read_json, sha256_of_json, write_json
from energylm.jobs.engine import Pool
from energylm.progress import Progress, say

FOLDER, FORMAT_VERSION = "blocks", 1


@dataclass(frozen=True)
class BlockForm:
    """How one kind of block is written down."""

    block: Callable[[Any], Any]  # what a block is, as JSON
    to_json: Callable[[Any], Any]  # what came of it
    from_json: Callable[[Any], Any]
    size: Callable[[Any], float]  # by how much a block advances the bar


class KeptBlocks:
    """The finished blocks of one job. Without an `output` nothing is kept; `others` are outputs of other runs, which
    are read only."""

    def __init__(self, output: Path | None, job: Any, form: BlockForm, *, others: Sequence[Path] = ()) -> None:
        self.form = form
        folders = [each / FOLDER / sha256_of_json([FORMAT_VERSION, job])[:20] for each in (output, *others) if each]
        self.folder = None if output is None else folders[0]
        self._folders = folders
        self._changed = False

    def find(self, number: int, block: Any) -> tuple[Any] | None:
        """What came of the block in an earlier run, in a tuple; None if that is not known."""
        paths = [folder / _file_name(number) for folder in self._folders]
        return next((kept for path in paths if path.is_file() and (kept := self._read(path, block)) is not None), None)

    def _read(self, path: Path, block: Any) -> tuple[Any] | None:
        try:
            record = read_json(path)
            whole = record["sha256"] == sha256_of_json([record["block"], record["found"]])
        except (DataError, KeyError, TypeError):
            whole = False
        if not whole:
            say(f"energylm: {path} is damaged: its block is done again")
            return None
        if record["block"] != self._hash(block):
            if not self._changed:
                say(f"energylm: the input has changed since {path} was kept: what changed is done again")
            self._changed = True
            return None
        return (self.form.from_json(record["found"]),)

    def keep(self, number: int, block: Any, result: Any) -> None:
        """On disk before anything else happens."""
        if self.folder is not None:
            record = {"block": self._hash(block), "found": self.form.to_json(result)}
            write_json(
                self.folder / _file_name(number),
                record | {"sha256": sha256_of_json([record["block"], record["found"]])},
            )

    def run(self, pool: Pool, blocks: Iterable[Any], *, progress: Progress) -> Iterator[Any]:
        """What comes of each block, in order: kept from an earlier run, or done now and kept at once."""
        order: deque[tuple[int, Any, tuple[Any] | None]] = deque()

        def missing() -> Iterator[Any]:
            for number, block in enumerate(blocks):
                kept = self.find(number, block)
                order.append((number, block, kept))
                if kept is None:
                    yield block
                else:
                    progress.advance(self.form.size(block))

        for result in pool.run(missing(), progress=progress):
            yield from self._known(order)
            number, block, _ = order.popleft()
            self.keep(number, block, result)
            yield result
        yield from self._known(order)

    def _known(self, order: deque[tuple[int, Any, tuple[Any] | None]]) -> Iterator[Any]:
        while order and (kept := order[0][2]) is not None:
            order.popleft()
            yield kept[0]

    def _hash(self, block: Any) -> str:
        return sha256_of_json(self.form.block(block))


def _file_name(number: int) -> str:
    return f"block-{number:05}.json"
