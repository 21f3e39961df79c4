"""One Parquet shard of negatives: a row a context, k continuations with both log-probabilities in each.

    window             int64                the window's number in the corpus split
    context_length     int32                tokens of it that were given
    continuations      list<list<uint32>>   k token sequences in reading order, end-of-text included where it was drawn
    log_prob           list<double>         of each, under the language model
    proposal_log_prob  list<double>         of each, under the proposal that drew it

Row groups are small: reading one context in random order decodes few others. Files appear whole or not at all, and the
same rows give the same bytes.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from energylm.data.negatives_manifest import NegativesShard
from energylm.errors import DataError, extra
from energylm.files import atomic_file, sha256_of_file

with extra("data"):
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS_PER_GROUP = 32


@dataclass(frozen=True)
class NegativeRows:
    """B contexts with K continuations each; positions past the end of a continuation hold 0."""

    window_B: NDArray[np.int64]
    context_length_B: NDArray[np.int64]
    tokens_BKT: NDArray[np.int64]
    length_BK: NDArray[np.int64]
    log_prob_BK: NDArray[np.float64]
    proposal_log_prob_BK: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.window_B)

    def take(self, rows: NDArray[np.int64]) -> Self:
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def bytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @classmethod
    def joined(cls, parts: "list[NegativeRows]") -> "NegativeRows":
        """The rows of all parts in turn, padded to the longest continuation."""
        columns = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name != "tokens_BKT"
        }
        longest = max(part.tokens_BKT.shape[2] for part in parts)
        tokens_BKT = np.zeros((*columns["length_BK"].shape, longest), dtype=np.int64)
        start = 0
        for part in parts:
            tokens_BKT[start : start + len(part), :, : part.tokens_BKT.shape[2]] = part.tokens_BKT
            start += len(part)
        return cls(tokens_BKT=tokens_BKT, **columns)


def write_shard(path: Path, rows: NegativeRows, *, identity: str) -> NegativesShard:
    """Write `rows` as the shard `path`; `identity` of the folder travels in its metadata."""
    contexts, copies, longest = rows.tokens_BKT.shape
    real_BKT = np.arange(longest) < rows.length_BK[..., None]
    tokens = _list(pa.array(rows.tokens_BKT[real_BKT].astype(np.uint32)), rows.length_BK.ravel())
    per_context = np.full(contexts, copies)
    table = pa.table(
        {
            "window": pa.array(rows.window_B),
            "context_length": pa.array(rows.context_length_B.astype(np.int32)),
            "continuations": _list(tokens, per_context),
            "log_prob": _list(pa.array(rows.log_prob_BK.ravel()), per_context),
            "proposal_log_prob": _list(pa.array(rows.proposal_log_prob_BK.ravel()), per_context),
        },
        metadata={"energylm.negatives": identity},
    )
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, row_group_size=ROWS_PER_GROUP, compression="zstd", use_dictionary=False)
        sha256 = sha256_of_file(temporary)
    return NegativesShard(file=path.name, contexts=contexts, tokens=int(rows.length_BK.sum()), sha256=sha256)


def read_group(path: Path, number: int) -> NegativeRows:
    """Row group `number` of a shard: rows number · ROWS_PER_GROUP and after."""
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            table = file.read_row_group(number, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path} cannot be read ({reason:.160}); run the same `energylm negatives` to repair it"
        ) from None
    column = {name: table[name].combine_chunks() for name in table.column_names}
    continuations = column["continuations"]
    contexts = len(continuations)
    length_BK = np.diff(continuations.values.offsets.to_numpy()).astype(np.int64).reshape(contexts, -1)
    tokens_BKT = np.zeros((*length_BK.shape, int(length_BK.max(initial=0))), dtype=np.int64)
    tokens_BKT[np.arange(tokens_BKT.shape[2]) < length_BK[..., None]] = continuations.values.flatten().to_numpy()
    return NegativeRows(
        window_B=column["window"].to_numpy(),
        context_length_B=column["context_length"].to_numpy().astype(np.int64),
        tokens_BKT=tokens_BKT,
        length_BK=length_BK,
        log_prob_BK=column["log_prob"].flatten().to_numpy().reshape(contexts, -1),
        proposal_log_prob_BK=column["proposal_log_prob"].flatten().to_numpy().reshape(contexts, -1),
    )


def read_windows(path: Path) -> NDArray[np.int64]:
    """The window number of every row of a shard."""
    window_B: NDArray[np.int64] = pq.read_table(path, columns=["window"], use_threads=False)["window"].to_numpy()
    return window_B


def _list(values: pa.Array, lengths: NDArray[np.int64]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
