"""A number for every text, from any model that has one: `energylm score`."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from energylm.config.cloze import Normalise, Per, ScorerConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.cloze.scoring import ScoreResult

ScoringModel = Annotated[
    str,
    Positional("MODEL"),
    Field(description="A model folder, a GGUF file, a known model (`energylm models list`) or a hub name."),
]


class Score(Verb, ScorerConfig):
    """Score texts: log-likelihood of causal models, pseudo-log-likelihood of masked and cloze models. Higher = better.

    Prints a JSON line a text, in the order of the file; rates and the convention go to stderr. Electric, two-tower and
    ELECTRA-TT models take one pass, masked models one for each token. With --output finished blocks of 256 texts are
    kept, and a killed run goes on when run again.
    """

    examples = (
        "energylm score smollm2-135m sentences.txt",
        "energylm score runs/electric/model sentences.tsv --field sentence --per word",
        "energylm score google-bert/bert-base-uncased texts.jsonl --masking within-word --normalise token",
        'echo "A text to score." | energylm score runs/mlm/model -',
    )
    writes = "optional"
    blocks = True
    apart_from: ClassVar[frozenset[str]] = frozenset({"device"})

    model: ScoringModel
    source: Annotated[str, Positional("FILE|-")] = Field(
        "-", description="A text a line, or TSV or JSONL by its ending; - is standard input."
    )
    field: str = Field("text", description="The JSONL field or TSV column that holds the text.")
    per: Per = Field("sentence", description="The finest scores that are printed.")
    normalise: Normalise = Field("none", description="Divide a text's score by its tokens or words.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.scorer import check_method, kind_of, usable_device
        from energylm.data.text_files import STDIN, existing

        existing(self.source)
        kind = kind_of(self.model)
        check_method(kind, self, name=self.model)
        usable_device(self.device)
        where = "standard input" if self.source == STDIN else self.source
        return f"would score every text of {where} with {self.model} ({kind})"

    def run(self, job: Job = DEFAULT_JOB) -> "ScoreResult":
        from energylm.verbs.cloze.scoring import score_texts

        return score_texts(self, job)

    def shown(self, result: "ScoreResult") -> str:
        return ""  # each line was written as soon as it was known
