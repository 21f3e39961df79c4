"""Judge a trained tagger or translator: `energylm seq2seq evaluate`; and as steps of recipes the scores of a model on
several sets by several searches, and the pick of the model that is best on one of them (goyal2021 chapters 3 to 5).

Relations  `evaluating` decodes and measures; `estimators.sequence_scores` has the scores.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from energylm.config.seq2seq import REFUSE, DecodingConfig, UnseenTags
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.seq2seq.evaluating import Picked, Scores, Seq2SeqEvaluation


class UsesSeq2Seq(Verb):
    """What all verbs that decode have."""

    search: ClassVar = {
        "decode": "decoding.method",
        "beam": "decoding.beam",
        "alpha": "decoding.alpha",
        "normalization": "decoding.normalization",
    }

    model: Annotated[str, Positional("MODEL")] = Field(description="The model folder of a run, e.g. runs/ner/model.")
    batch: int = Field(64, ge=1, description="Sentences at a time.")


class JudgesSeq2Seq(UsesSeq2Seq):
    """What all verbs that judge outputs have."""

    limit: int | None = Field(None, ge=1, description="Judge the first so many of a set; none = all.")
    unseen_tags: UnseenTags = Field(
        REFUSE, description="Tags that training never saw: refuse them, or count them as never found."
    )
    length_bins: tuple[int, ...] = Field(
        (20, 30, 40), description="BLEU by source length in words: below the first, … , from the last on."
    )


class EvaluateSeq2Seq(JudgesSeq2Seq):
    """Decode labelled data and judge it: F1 by seqeval, accuracy, or BLEU by sacrebleu; and the spread of log Z.

    With --output, results.json, results.md and report.html are written there.
    """

    examples = (
        "energylm seq2seq evaluate runs/ner/model eng.testb --decode greedy",
        "energylm seq2seq evaluate runs/mt/model test.de test.en --beam 5 --normalization global --json bleu.json",
    )
    shortcuts: ClassVar = UsesSeq2Seq.search
    writes = "optional"
    apart_from: ClassVar = frozenset({"batch"})

    data: Annotated[tuple[str, ...], Positional("FILE")] = Field(
        description="The labelled file, in the format of the model's task; to translate: source, target."
    )
    decoding: DecodingConfig = DecodingConfig()

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.seq2seq.evaluating import open_inputs

        model, examples, _ = open_inputs(self)
        return f"would decode {len(examples):,} sentences by {self.decoding.method} with {model.name} and judge them"

    def run(self, job: Job = DEFAULT_JOB) -> "Seq2SeqEvaluation":
        from energylm.verbs.seq2seq.evaluating import evaluate

        return evaluate(self, output=job.output)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.seq2seq.costs import count_evaluations

        return count_evaluations([self], around)

    def shown(self, result: "Seq2SeqEvaluation") -> str:
        from energylm.tables import to_markdown

        return "\n".join(f"{title}\n\n{to_markdown(table)}" for title, table in result.tables.items())


class ScoreSeq2Seq(JudgesSeq2Seq):
    """Judge a trained model on several sets, decoded in several ways."""

    writes = "optional"
    apart_from: ClassVar = frozenset({"batch"})

    sets: dict[str, tuple[str, ...]] = Field(
        min_length=1, description="Labelled files by name, e.g. {dev: [FILE], test: [FILE]}; two files to translate."
    )
    decodings: dict[str, DecodingConfig] = Field(min_length=1, description="Searches by name.")

    def evaluations(self) -> dict[str, dict[str, EvaluateSeq2Seq]]:
        """Set → search → its evaluation."""
        same = self.model_dump(exclude={"sets", "decodings"})
        return {
            name: {
                search: EvaluateSeq2Seq(**same, data=files, decoding=decoding)
                for search, decoding in self.decodings.items()
            }
            for name, files in self.sets.items()
        }

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return "\n".join(each.check(job) for searches in self.evaluations().values() for each in searches.values())

    def run(self, job: Job = DEFAULT_JOB) -> "Scores":
        from energylm.verbs.seq2seq.evaluating import score

        return score(self.evaluations(), output=job.output)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.seq2seq.costs import count_evaluations

        return count_evaluations([each for by in self.evaluations().values() for each in by.values()], around)


class PickSeq2Seq(Verb):
    """Of several scored models take the one that is best on one set."""

    among: dict[str, str] = Field(min_length=1, description="Folders that hold scores, by name.")
    by: str = Field("dev", description="The set that decides.")
    decoding: str = Field(description="The search whose score on that set decides.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return f"would pick {self.run(job).picked} of {', '.join(self.among)}, the best on {self.by} by {self.decoding}"

    def run(self, job: Job = DEFAULT_JOB) -> "Picked":
        from energylm.verbs.seq2seq.evaluating import pick

        return pick(self)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import Counted

        return Counted()
