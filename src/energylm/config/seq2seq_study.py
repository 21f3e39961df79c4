"""What the tables of goyal2021 chapters 3 to 5 are made of: models of several runs, scored by several searches."""

from typing import Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.seq2seq import REFUSE, DecodingConfig, TrainSeq2SeqConfig, UnseenTags


class RestartsConfig(TrainSeq2SeqConfig):
    """A model trained from several seeds, of which the one that is best on the validation data is kept."""

    restarts: int = Field(3, ge=1, description="Runs, whose seeds follow training.seed.")

    @model_validator(mode="after")
    def _can_be_compared(self) -> Self:
        if self.training.validation.every_steps is None:
            raise ValueError("restarts are compared on the validation data; set training.validation.every_steps")
        return self

    def one(self, number: int) -> TrainSeq2SeqConfig:
        """The run that is restart `number`: 0, 1, …"""
        values = self.model_dump(exclude={"restarts"})
        values["training"]["seed"] += number
        return TrainSeq2SeqConfig.checked(values)


class ScoresConfig(Config):
    """How good a trained model is, on several sets, decoded in several ways."""

    model: str = Field(description="The folder of a trained model.")
    sets: dict[str, tuple[str, ...]] = Field(
        min_length=1, description="Labelled files by name, e.g. {dev: [FILE], test: [FILE]}; two files to translate."
    )
    decodings: dict[str, DecodingConfig] = Field(min_length=1, description="Searches by name.")
    batch: int = Field(64, ge=1, description="Sentences at a time.")
    limit: int | None = Field(None, ge=1, description="Judge the first so many of each set; none = all.")
    unseen_tags: UnseenTags = Field(
        REFUSE, description="Tags that training never saw: refuse them, or count them as never found."
    )
    length_bins: tuple[int, ...] = Field((20, 30, 40), description="BLEU by source length in words, as in table 5.6.")


class PickConfig(Config):
    """Of several scored models the one that is best on one set."""

    among: dict[str, str] = Field(min_length=1, description="Folders that hold scores, by name.")
    by: str = Field("dev", description="The set that decides.")
    decoding: str = Field(description="The search whose score on that set decides.")
