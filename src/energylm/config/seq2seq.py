"""What `energylm seq2seq …` does: which task, which network, trained by which objective, decoded how."""

import math
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.training import OptimizerConfig, TrainingConfig, ValidationConfig

ENTITIES: Final = "entities"
TAGS: Final = "tags"
TRANSLATION: Final = "translation"
CROSS_ENTROPY: Final = "cross-entropy"
SCHEDULED_SAMPLING: Final = "scheduled-sampling"
DIRECT_LOSS: Final = "direct-loss"
HINGE: Final = "hinge"
GREEDY: Final = "greedy"
BEAM: Final = "beam"
SOFT_BEAM: Final = "soft-beam"
LOCAL: Final = "local"
HAMMING: Final = "hamming"
DOUBLED_OUTSIDE: Final = "doubled-outside"
REFUSE: Final = "refuse"

TaskName = Literal["entities", "tags", "translation"]
Normalization = Literal["local", "global"]
UnseenTags = Literal["refuse", "wrong"]


class AlphaConfig(Config):
    """How peaked the relaxations are: α in an epoch is start · growth^epoch, at most `largest`."""

    start: float = Field(1.0, gt=0, description="α in the first epoch.")
    growth: float = Field(1.0, ge=1, description="α is multiplied by this after every epoch; 1 keeps it fixed.")
    largest: float = Field(1e4, gt=0, description="α grows no further than this.")

    def at(self, epoch: int) -> float:
        return min(self.start * math.exp(min(epoch * math.log(self.growth), 700.0)), self.largest)


class ObjectiveConfig(Config):
    """The loss and its relaxation (goyal2021 ch. 3 to 5)."""

    kind: Literal["cross-entropy", "scheduled-sampling", "direct-loss", "hinge"] = Field(
        CROSS_ENTROPY, description="What is minimised; the last two search with a soft beam and need a warm start."
    )
    predictions: Literal["greedy", "sample"] = Field(
        GREEDY, description="Scheduled sampling feeds back the best symbol, or one drawn from the model."
    )
    relaxed: bool = Field(True, description="Scheduled sampling by soft predictions (α); false is Bengio et al.'s.")
    mixing: Literal["inverse-sigmoid", "always"] = Field(
        "inverse-sigmoid", description="How often gold symbols are fed: fewer by inverse-sigmoid decay, or never."
    )
    strength: float = Field(100.0, gt=0, description="k of the decay k / (k + exp(epoch / k)): larger is gentler.")
    alpha: AlphaConfig = AlphaConfig()
    epoch_steps: int | None = Field(
        None, ge=1, description="Updates that α and the decay count as an epoch; none = a pass over the data."
    )
    beam: int = Field(3, ge=1, description="Elements of the soft beam (ch. 4: 3; ch. 5 tagging: 5).")
    normalization: Normalization = Field(
        LOCAL, description="Search by log-softmaxed scores (local) or by raw ones (global)."
    )
    cost: str = Field(HAMMING, description="A sum over positions: hamming, or doubled-outside for entities.")
    self_normalization: float = Field(
        0.0, ge=0, description="λ of the squared log Z that is added to cross-entropy (§5.3.1)."
    )

    @model_validator(mode="after")
    def _self_normalization_is_for_cross_entropy(self) -> Self:
        if self.self_normalization and self.kind != CROSS_ENTROPY:
            raise ValueError(f"self_normalization is added to cross-entropy, not to {self.kind}; set it to 0")
        return self


class DecodingConfig(Config):
    """How a trained model is searched."""

    method: Literal["greedy", "beam", "soft-beam"] = Field(BEAM, description="Which search writes the outputs.")
    beam: int = Field(3, ge=1, description="Elements of the beam.")
    alpha: float = Field(1.0, gt=0, description="How peaked a soft beam is.")
    normalization: Normalization = Field(
        LOCAL, description="Scores log-softmaxed at each step (local) or raw (global)."
    )
    length_exponent: float = Field(
        0.0, ge=0, description="Rank a beam's sequences by score / length to this power; 0 = the plain score."
    )
    length_ratio: float = Field(
        1.5, gt=0, description="A translation has at most so many tokens for each source token …"
    )
    length_extra: int = Field(10, ge=0, description="… and this many more.")


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


class Seq2SeqOptimizer(OptimizerConfig):
    learning_rate: float = Field(1e-3, gt=0, description="The highest learning rate.")


class Seq2SeqValidation(ValidationConfig):
    """The weights that decode best on the validation data are kept."""

    every_steps: int | None = Field(200, ge=1, description="Validate this often, and after the last step.")
    metric: str = Field(
        "quality", description="quality (F1 of entities, accuracy of tags, BLEU of translations), accuracy, loss …"
    )
    larger_is_better: bool = Field(True, description="Whether the deciding number should grow; false for a loss.")


class Seq2SeqTraining(TrainingConfig):
    optimizer: Seq2SeqOptimizer = Seq2SeqOptimizer()
    validation: Seq2SeqValidation = Seq2SeqValidation()


class TrainSeq2SeqConfig(Config):
    """A tagger or translator, trained for the search that will decode it."""

    task: TaskName = Field(description="entities (CoNLL-2003 columns), tags (CoNLL-U) or translation (parallel text).")
    train: tuple[str, ...] = Field(description="The training file; for translation the source and the target file.")
    valid: tuple[str, ...] = Field(description="The same for validation.")
    init: str | None = Field(
        None, description="Start from this trained model (its vocabularies too), as search-aware training should."
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
    training: Seq2SeqTraining = Seq2SeqTraining()

    @model_validator(mode="after")
    def _files_fit_the_task(self) -> Self:
        wanted = 2 if self.task == TRANSLATION else 1
        for name, files in (("train", self.train), ("valid", self.valid)):
            if len(files) != wanted:
                what = "two files, source and target" if wanted == 2 else "one file"
                raise ValueError(f"{name} came with {len(files)} files; the task {self.task} takes {what}")
        return self


class DecodeSeq2SeqConfig(Config):
    """Outputs of a trained model for new sources."""

    model: str = Field(description="The folder of a trained model.")
    source: str = Field("-", description="A sentence a line (words of a tagger by white space); - is standard input.")
    decoding: DecodingConfig = DecodingConfig()
    batch: int = Field(64, ge=1, description="Sentences at a time.")


class EvaluateSeq2SeqConfig(Config):
    """How good a trained model's outputs are."""

    model: str = Field(description="The folder of a trained model.")
    data: tuple[str, ...] = Field(description="The labelled file, in the format of the model's task; two to translate.")
    decoding: DecodingConfig = DecodingConfig()
    batch: int = Field(64, ge=1, description="Sentences at a time.")
    limit: int | None = Field(None, ge=1, description="Judge the first so many; none = all.")
    unseen_tags: UnseenTags = Field(
        REFUSE, description="Tags that training never saw: refuse them, or count them as never found."
    )
    length_bins: tuple[int, ...] = Field(
        (20, 30, 40), description="BLEU by source length in words: below the first, … , from the last on."
    )


class LineConfig(Config):
    """Scheduled sampling's objective along a line of weights (goyal2021 figure 3.1)."""

    model: str = Field(description="The folder of a trained model: where the line begins.")
    data: tuple[str, ...] = Field(description="The labelled file whose loss is drawn; two to translate.")
    other: str | None = Field(None, description="The model the line leads to, at position 1; none = at random.")
    limit: int = Field(8, ge=1, description="The first so many sequences: few, so that single jumps are seen.")
    alphas: tuple[float, ...] = Field((1.0, 5.0), min_length=1, description="α of each relaxed line.")
    points: int = Field(200, ge=2, description="Positions on the line.")
    reach: float = Field(0.5, gt=0, description="The last position; 1 is a step as long as the weights themselves.")
    seed: int = Field(0, ge=0, description="Of a random direction.")

    @model_validator(mode="after")
    def _alphas_are_positive(self) -> Self:
        if bad := [alpha for alpha in self.alphas if not 0 < alpha < math.inf]:
            raise ValueError(f"α came as {bad[0]}; a relaxation needs a finite α above 0")
        return self
