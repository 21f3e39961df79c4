"""How well a detector does on texts whose writers are known, and how well word counts do: `energylm detect eval`."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from energylm.config.detect import DetectionSources
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.detect.evaluating import DetectorEvaluation


class EvaluateDetector(Verb):
    """Measure a detector on texts whose writers are known: generators and domains that it has or has not seen.

    AUROC, TPR at 1 % and 5 % false positives and balanced accuracy, each with a bootstrap interval by text; by source
    and by length; TF-IDF with logistic regression beside it where training texts are given.
    """

    examples = (
        "energylm detect eval runs/detector/model --human webtext.test.jsonl --machine xl-1542M.test.jsonl",
        "energylm detect eval runs/gpt2/model --pairs xsum_opt.json --train-pairs xsum_gpt2-xl.json --output out/opt",
    )
    shortcuts: ClassVar = {
        "human": "data.human",
        "machine": "data.machine",
        "pairs": "data.pairs",
        "format": "data.format",
        "field": "data.field",
        "part": "data.part",
        "train_human": "train.human",
        "train_machine": "train.machine",
        "train_pairs": "train.pairs",
    }
    writes = "optional"

    detector: Annotated[str, Positional("DETECTOR")] = Field(
        description="A detector's folder (OUTPUT/model of `energylm detect train`)."
    )
    data: DetectionSources = Field(DetectionSources(), description="The texts to judge.")
    train: DetectionSources = Field(
        DetectionSources(),
        description="What the TF-IDF baseline learns from: the detector's training texts. Format and field are those "
        "of the texts to judge where none is given.",
    )
    drop_overlap: bool = Field(False, description="Leave out texts that the detector was trained on.")
    lengths: tuple[int, ...] = Field(
        (20, 40, 80, 160, 320, 640), description="Tokens at which accuracy is measured on cut texts; none = no curve."
    )
    lengths_texts: int = Field(150, ge=10, description="At most so many texts of each class for the curve by length.")
    resamples: int = Field(1000, ge=1, description="Bootstrap resamples, by text.")
    seed: int = Field(0, ge=0, description="Of the bootstrap and the cuts.")

    @property
    def baseline_texts(self) -> DetectionSources | None:
        """What the baseline learns from; none where there is none."""
        if self.train.is_empty:
            return None
        same = {"format": self.data.format, "field": self.data.field}
        return self.train.model_copy(update={k: v for k, v in same.items() if k not in self.train.model_fields_set})

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.detect.evaluating import open_inputs

        _, data, training = open_inputs(self)
        beside = "" if training is None else f", TF-IDF beside it on {training.describe()}"
        return f"would judge {data.describe()} with {self.detector}{beside}"

    def run(self, job: Job = DEFAULT_JOB) -> "DetectorEvaluation":
        from energylm.verbs.detect.evaluating import evaluate

        return evaluate(self, output=job.output)
