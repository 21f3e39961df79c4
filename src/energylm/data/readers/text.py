"""Plain text: one document a file, one a line, or one a block between blank lines."""

from collections.abc import Iterator
from dataclasses import dataclass

from energylm.data.document import Document, FileSource
from energylm.data.readers.utf8 import decoded_blocks, decoded_lines


@dataclass(frozen=True)
class TextFile(FileSource):
    """The whole file is one document, read in blocks."""

    def documents(self) -> Iterator[Document]:
        yield Document(self.name, decoded_blocks(self.path))


@dataclass(frozen=True)
class TextLines(FileSource):
    """Every line that is not blank is a document."""

    def documents(self) -> Iterator[Document]:
        for number, line in decoded_lines(self.path):
            if line and not line.isspace():
                yield Document(f"{self.name}:{number}", (line,))


@dataclass(frozen=True)
class TextBlocks(FileSource):
    """Lines up to a blank line are a document."""

    def documents(self) -> Iterator[Document]:
        block: list[str] = []
        first = 1
        for number, line in decoded_lines(self.path):
            if line and not line.isspace():
                first = first if block else number
                block.append(line)
            elif block:
                yield Document(f"{self.name}:{first}", ("\n".join(block),))
                block = []
        if block:
            yield Document(f"{self.name}:{first}", ("\n".join(block),))
