"""Parquet: a string column of one file, read batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass

from energylm.data.document import Document, FileSource, guarded
from energylm.data.readers.jsonl import nearest_field
from energylm.errors import DataError

_ROWS_AT_ONCE = 256
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class ParquetColumn(FileSource):
    field: str = "text"

    @property
    def text_bytes(self) -> int | None:
        return None  # compressed

    def documents(self) -> Iterator[Document]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # A small buffer instead of whole row groups: writers often make the file one group.
            file = pq.ParquetFile(self.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._unreadable(error) from None
        with file:
            names = file.schema_arrow.names
            if self.field not in names:
                raise DataError(f"{self.path} has no column {self.field!r}; {nearest_field(self.field, names)}")
            row, batches = 0, file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[self.field])
            for batch in guarded(batches, self._unreadable):  # a damaged page shows only now
                for value in batch.column(0):
                    text = value.as_py()
                    if not isinstance(text, str):
                        raise DataError(
                            f"{self.path} row {row}: column {self.field!r} is {text!r:.40}, expected text; "
                            f"drop such rows, or {nearest_field(self.field, names)}"
                        )
                    yield Document(f"{self.name}:{row}", (text,))
                    row += 1

    def _unreadable(self, error: Exception) -> DataError:
        reason = " ".join(str(error).split())
        return DataError(f"{self.path} is not a readable Parquet file ({reason:.160}); make it again")
