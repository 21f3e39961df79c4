"""How good tags and translations are, by the scorers that others use: seqeval for entities, sacrebleu for translations.

All numbers are in per cent. F1 is of whole entities over all types (micro, as conlleval counts) and as the mean over
types (macro); accuracy is of single tags. BLEU comes with its n-gram precisions, the ratio of output to reference
length and its values by source length (goyal2021 tables 5.5 and 5.6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from energylm.errors import extra
from energylm.records import Record
from energylm.tables import Table


@dataclass(frozen=True)
class TagScores(Record):
    sentences: int
    words: int
    accuracy: float

    computed = ("quality", "convention")

    @property
    def quality(self) -> float:
        return self.accuracy

    @property
    def convention(self) -> str:
        return f"per cent; {self.sentences:,} sentences"

    @property
    def table(self) -> Table:
        return Table(("words", "accuracy"), [(self.words, self.accuracy)], self.convention)


@dataclass(frozen=True)
class EntityScores(Record):
    sentences: int
    words: int
    accuracy: float
    precision: float
    recall: float
    f1: float  # over all entities
    macro_f1: float  # mean over types
    f1_of_types: dict[str, float]

    computed = ("quality", "convention")

    @property
    def quality(self) -> float:
        return self.f1

    @property
    def convention(self) -> str:
        return f"per cent, whole entities by seqeval; {self.sentences:,} sentences"

    @property
    def table(self) -> Table:
        columns = ("F1", "precision", "recall", "macro F1", "accuracy", *(f"F1 {name}" for name in self.f1_of_types))
        row = (self.f1, self.precision, self.recall, self.macro_f1, self.accuracy, *self.f1_of_types.values())
        return Table(columns, [row], self.convention)


@dataclass(frozen=True)
class LengthBin(Record):
    """Sources of `least` to `most` words (none: no limit)."""

    least: int
    most: int | None
    sentences: int
    bleu: float | None  # none where no source is that long

    @property
    def name(self) -> str:
        return f"{self.least}+" if self.most is None else f"{self.least}–{self.most}"


@dataclass(frozen=True)
class TranslationScores(Record):
    sentences: int
    bleu: float
    precisions: dict[str, float]  # of n-grams: n1 … n4
    brevity_penalty: float
    length_ratio: float  # words of the outputs over words of the references
    by_source_length: dict[str, LengthBin]  # b1, b2, … from the shortest on
    signature: str  # sacrebleu's

    computed = ("quality", "precisions_text", "convention")

    @property
    def quality(self) -> float:
        return self.bleu

    @property
    def precisions_text(self) -> str:
        return "/".join(f"{value:.1f}" for value in self.precisions.values())

    @property
    def convention(self) -> str:
        return f"BLEU by sacrebleu ({self.signature}); {self.sentences:,} sentences, source lengths in words"

    @property
    def table(self) -> Table:
        bins = [each for each in self.by_source_length.values() if each.bleu is not None]
        columns = ("BLEU", "1/2/3/4-grams", "length ratio", *(f"BLEU {each.name}" for each in bins))
        row = (self.bleu, self.precisions_text, self.length_ratio, *(each.bleu for each in bins))
        return Table(columns, [row], self.convention)


SequenceScores = TagScores | EntityScores | TranslationScores


def tag_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TagScores:
    pairs = [pair for g, p in zip(gold, predicted, strict=True) for pair in zip(g, p, strict=True)]
    return TagScores(len(gold), len(pairs), 100 * sum(g == p for g, p in pairs) / max(len(pairs), 1))


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScores:
    with extra("rerank"):
        from seqeval.metrics import classification_report

    tags = tag_scores(gold, predicted)
    report = classification_report(
        [list(each) for each in gold], [list(each) for each in predicted], output_dict=True, zero_division=0
    )
    micro, macro = report.pop("micro avg"), report.pop("macro avg")
    del report["weighted avg"]
    return EntityScores(
        sentences=tags.sentences,
        words=tags.words,
        accuracy=tags.accuracy,
        precision=100 * float(micro["precision"]),
        recall=100 * float(micro["recall"]),
        f1=100 * float(micro["f1-score"]),
        macro_f1=100 * float(macro["f1-score"]),
        f1_of_types={name: 100 * float(values["f1-score"]) for name, values in sorted(report.items())},
    )


def translation_scores(
    sources: Sequence[str], references: Sequence[str], outputs: Sequence[str], *, length_bins: Sequence[int] = ()
) -> TranslationScores:
    """`length_bins` are the edges in source words: below the first, …, from the last on."""
    with extra("rerank"):
        from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    whole = metric.corpus_score(list(outputs), [list(references)])
    lengths = [len(source.split()) for source in sources]
    edges: list[int | None] = [*length_bins, None]
    bins = []
    for least, most in zip((0, *length_bins), edges, strict=True):
        members = [i for i, n in enumerate(lengths) if n >= least and (most is None or n < most)]
        bleu = None
        if members:
            bleu = BLEU().corpus_score([outputs[i] for i in members], [[references[i] for i in members]]).score
        bins.append(LengthBin(least, most, len(members), bleu))
    return TranslationScores(
        sentences=len(outputs),
        bleu=whole.score,
        precisions={f"n{n}": value for n, value in enumerate(whole.precisions, start=1)},
        brevity_penalty=whole.bp,
        length_ratio=whole.sys_len / max(whole.ref_len, 1),
        by_source_length={f"b{n}": each for n, each in enumerate(bins, start=1)} if length_bins else {},
        signature=str(metric.get_signature()),
    )
