"""What `energylm detect` works on: labelled texts and the blocks that they are read in; and what an attack aims at."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.config.base import Config, listed

Strings = Annotated[tuple[str, ...], BeforeValidator(listed)]  # one or several
TextFormat = Literal["auto", "text", "lines", "jsonl"]  # auto = by the ending of the file
Part = Literal["all", "train", "test"]
Towards = Literal["real", "fake"]  # of an attack on an energy: which verdict it wants


class DetectionSources(Config):
    """Texts by people and by machines: JSON Lines, `{original: […], sampled: […]}`, plain text, folders of them."""

    human: Strings = Field(
        (), description="Human text: .jsonl, .txt, {original, sampled} .json (its originals), a folder."
    )
    machine: Strings = Field(
        (), description="Machine text: .jsonl, .txt, {original, sampled} .json (its samples), a folder."
    )
    pairs: Strings = Field((), description="A JSON file {original: […], sampled: […]}, taken as both.")
    format: TextFormat = Field(
        "auto", description="auto (by ending), text (a file is a text), lines (a line is a text), jsonl."
    )
    field: str = Field("text", description="The JSON field that holds the text.")
    part: Part = Field("all", description="all texts, or the train or test part of them by a hash of their beginning.")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="The share of texts in the test part.")
    limit: int | None = Field(None, ge=1, description="At most so many texts of each file and class, evenly spread.")

    @property
    def is_empty(self) -> bool:
        return not (self.human or self.machine or self.pairs)


class BlockConfig(Config):
    """Long texts are read in intersecting blocks (bakhtin2019 §5.4); the text's score is the mean over them."""

    tokens: int = Field(160, ge=8, description="Tokens of a block, special tokens not counted (bakhtin2019: 160).")
    stride: int = Field(
        default_factory=lambda given: max(1, 3 * given.get("tokens", 0) // 4),
        ge=1,
        description="Tokens from one block's beginning to the next, three quarters of a block where none is given; the "
        "last ends the text.",
    )

    @model_validator(mode="after")
    def _leaves_no_gap(self) -> Self:
        if self.stride > self.tokens:
            raise ValueError(
                f"stride {self.stride} exceeds the block of {self.tokens} tokens and leaves gaps; lower it"
            )
        return self
