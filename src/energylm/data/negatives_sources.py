"""Folders of negatives, each with the corpus of its real texts: what energies are trained and judged on."""

import shlex
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from energylm.data.corpus import Corpus
from energylm.data.manifest import TOKENIZER_FOLDER
from energylm.data.negatives import Negatives
from energylm.errors import ConfigError, VocabularyMismatch


class NegativesSource(NamedTuple):
    """Negatives, and the corpus of their real texts."""

    negatives: Negatives
    corpus: Corpus


def paired_sources(negatives: Sequence[str], corpora: Sequence[str | Path]) -> tuple[NegativesSource, ...]:
    """Folders of negatives with the corpus of each (or one for all)."""
    if len(corpora) not in (1, len(negatives)):
        raise ConfigError(
            f"{len(corpora)} corpora came for {len(negatives)} folders of negatives; give one for all, or one for each "
            "in the same order"
        )
    opened = {folder: Corpus.open(folder) for folder in corpora}
    of_each = corpora if len(corpora) == len(negatives) else list(corpora) * len(negatives)
    return tuple(
        NegativesSource(Negatives.open(folder), opened[corpus])
        for folder, corpus in zip(negatives, of_each, strict=True)
    )


def open_negatives_sources(negatives: Sequence[str], corpora: Sequence[str | Path]) -> tuple[NegativesSource, ...]:
    """Different folders of negatives, each with the corpus that they were made from, all of one tokenizer."""
    sources = paired_sources(negatives, corpora)
    opened = [source.corpus for source in sources]
    for corpus in opened[1:]:
        if corpus.manifest.tokenizer.sha256 != opened[0].manifest.tokenizer.sha256:
            raise VocabularyMismatch(
                f"the corpora {opened[0].folder} and {corpus.folder} have different tokenizers, but one energy reads "
                "one; build the second, and then its negatives, with "
                f"--tokenizer {shlex.quote(str(opened[0].folder / TOKENIZER_FOLDER))}"
            )
    for source in sources:
        source.negatives.check(corpus=source.corpus)
    for first, second in combinations([source.negatives for source in sources], 2):
        if first.manifest.identity == second.manifest.identity:
            raise ConfigError(f"{first.folder} and {second.folder} are the same negatives; name them once")
    return sources
