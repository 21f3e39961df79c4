"""WikiText (Merity et al. 2016): one plain text file of many articles, each opened by a line ` = Title = `.

Sections inside an article have two or more equal signs (` = = History = = `). A title line counts as one only between
blank lines, because tables and formulas hold equal signs too. The article with its headings is the document.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from energylm.data.document import Document, FileSource
from energylm.data.readers.utf8 import decoded_lines

_TITLE = re.compile(r"^ ?= (?!=)(.*[^=\s]) = *$")


@dataclass(frozen=True)
class WikiArticles(FileSource):
    """Articles of a WikiText file; text before the first title is a document of its own."""

    def documents(self) -> Iterator[Document]:
        article: list[str] = []
        first, after_blank = 1, True
        for (number, line), (_, following) in pairwise(chain(decoded_lines(self.path), ((0, ""),))):
            if after_blank and not following.strip() and _TITLE.match(line):
                yield from self._document(article, first)
                article, first = [], number
            article.append(line)
            after_blank = not line.strip()
        yield from self._document(article, first)

    def _document(self, lines: list[str], first: int) -> Iterator[Document]:
        text = "\n".join(lines).strip("\n")
        if text and not text.isspace():
            yield Document(f"{self.name}:{first}", (text,))
