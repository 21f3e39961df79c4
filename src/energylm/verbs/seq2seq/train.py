"""Train a tagger or translator for the search that will decode it: `energylm seq2seq train` (goyal2021 ch. 3 to 5).

OUTPUT/model/          the trained model, a folder for `Seq2SeqModel.from_pretrained`, there once the run is finished
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished

With several `restarts` these lie in OUTPUT/restart-N, and OUTPUT/model is the best of them.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.seq2seq import REFUSE, TRANSLATION, DecodingConfig, ObjectiveConfig, TaskName, UnseenTags
from energylm.config.training import TrainingConfig, ValidationConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, TrainingVerb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.seq2seq.training import Seq2SeqRun


class NetworkConfig(Config):
    """The LSTM encoder and decoder (§3.3.3, 4.5: entities 64 with label embeddings of 8; supertags 512 and 512)."""

    hidden: int = Field(64, ge=1, description="Units of the encoder's directions and of the decoder.")
    embedding: int = Field(8, ge=1, description="Size of the output symbols' embeddings.")
    source_embedding: int = Field(64, ge=1, description="Size of the source tokens' embeddings.")
    bidirectional: bool = Field(True, description="The encoder reads both ways; false lets a tagger see no future.")
    attention: Literal["fixed", "learned"] | None = Field(
        None, description="Position i attends to i (fixed), or learned; none = fixed for tagging, else learned."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Of source embeddings, memory and readout.")

    def settings(self, task: TaskName, *, sources: int, outputs: int, eos: int | None) -> dict[str, Any]:
        """Of the network of a task, by the names of its `config.json`; `sources` and `outputs` count symbols."""
        return {
            "source_vocab_size": sources,
            "vocab_size": outputs,
            "hidden_size": self.hidden,
            "source_embedding_size": self.source_embedding,
            "embedding_size": self.embedding,
            "bidirectional": self.bidirectional,
            "attention": self.attention or ("learned" if task == TRANSLATION else "fixed"),
            "dropout": self.dropout,
            "eos_token_id": eos,
        }


class TrainSeq2Seq(TrainingVerb):
    """Train a tagger or translator. Killed runs go on where they stopped; finished ones are not repeated.

    Search-aware losses (direct-loss, hinge) start from a model trained by cross-entropy; a globally normalized one from
    a self-normalized model (--set objective.self_normalization=0.1). α grows by --set objective.alpha.growth=1.5. The
    weights that decode best on the validation data are kept.
    """

    examples = (
        "energylm seq2seq train entities --train eng.train --valid eng.testa --output runs/ner --steps 2000",
        "energylm seq2seq train entities --train eng.train --valid eng.testa --output runs/direct "
        "--init runs/ner/model --loss direct-loss --set objective.cost=doubled-outside",
        "energylm seq2seq train translation --train train.de --train train.en --valid val.de --valid val.en "
        "--output runs/mt --set network.hidden=256 --dry-run",
    )
    shortcuts: ClassVar = {
        "loss": "objective.kind",
        "normalization": "objective.normalization",
        "beam": "objective.beam",
        "alpha": "objective.alpha.start",
        "steps": "training.steps",
        "seed": "training.seed",
    }

    task: Annotated[TaskName, Positional("TASK")] = Field(
        description="entities (CoNLL-2003 columns), tags (CoNLL-U) or translation (parallel text)."
    )
    train: tuple[str, ...] = Field(description="Training file; to translate: the source, then the target file.")
    valid: tuple[str, ...] = Field(description="The same for validation.")
    init: str | None = Field(
        None, description="Start from this trained model (its vocabularies too), as search-aware training should."
    )
    restarts: int = Field(
        1, ge=1, description="Runs, whose seeds follow one another; the best on the validation data is kept."
    )
    network: NetworkConfig = NetworkConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    decoding: DecodingConfig = Field(DecodingConfig(), description="How validation decodes.")
    least_count: int = Field(2, ge=1, description="Words of a tagger that come less often are one unknown word.")
    vocabulary_size: int = Field(8000, ge=300, description="Tokens of a translator's BPE, one for both languages.")
    longest: int = Field(80, ge=1, description="Training sequences with more source or target tokens are left out.")
    limit: int | None = Field(None, ge=1, description="Train on the first so many sequences; none = on all.")
    valid_limit: int | None = Field(None, ge=1, description="Validate on the first so many sequences; none = on all.")
    unseen_tags: UnseenTags = Field(
        REFUSE, description="Validation tags that training never saw: refuse them, or count them as never found."
    )
    training: TrainingConfig = Field(
        TrainingConfig(validation=ValidationConfig(every_steps=200, metric="quality", larger_is_better=True)),
        description="validation.metric is quality (F1 of entities, accuracy of tags, BLEU of translations) or another.",
    )

    @model_validator(mode="after")
    def _files_fit_the_task(self) -> Self:
        expected = 2 if self.task == TRANSLATION else 1
        for name, files in (("train", self.train), ("valid", self.valid)):
            if len(files) != expected:
                what = "two files, source and target" if expected == 2 else "one file"
                raise ValueError(f"{name} came with {len(files)} files; the task {self.task} takes {what}")
        if self.restarts > 1 and self.training.validation.every_steps is None:
            raise ValueError("restarts are compared on the validation data; set training.validation.every_steps")
        return self

    def restart(self, number: int) -> "TrainSeq2Seq":
        """The run that is restart `number`: 0, 1, …"""
        training = self.training.model_copy(update={"seed": self.training.seed + number})
        return self.model_copy(update={"restarts": 1, "training": training})

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.seq2seq.training import describe

        return describe(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "Seq2SeqRun":
        from energylm.verbs.seq2seq.training import train, train_restarts

        return train(self, job.folder) if self.restarts == 1 else train_restarts(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.seq2seq.costs import count_training

        return count_training(self, around)
