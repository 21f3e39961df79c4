"""What the steps of a generalization grid are given: cells, likelihood baselines, and where each cell stands."""

from typing import Literal

from pydantic import Field

from energylm.config.base import Config, Folders

Setting = Literal["in-domain", "cross-architecture", "cross-corpus", "unseen"]
SETTINGS: tuple[Setting, ...] = ("in-domain", "cross-architecture", "cross-corpus", "unseen")


class DiscriminationConfig(Config):
    """A cell: an energy judged on generated texts beside the real ones."""

    energy: str = Field(description="The energy's folder.")
    negatives: Folders = Field(description="Folders of generated continuations of test texts.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")
    trained_on: tuple[str, ...] = Field((), description="Negatives that the energy learnt from: must not overlap.")
    trained_on_corpus: tuple[str, ...] = Field((), description="The corpus of each of these, or one for all.")
    resamples: int = Field(1000, ge=1, description="Of the bootstrap intervals.")
    seed: int = Field(0, ge=0, description="Of the bootstrap.")


class LikelihoodConfig(Config):
    """The log-likelihood of a language model as an energy."""

    lm: str = Field(description="The language model.")
    negatives: Folders = Field(description="Generated continuations of validation texts, for threshold and sign.")
    corpus: Folders = Field(description="The corpus of each, or one for all.")


class CellConfig(Config):
    """Where a cell stands in the grid; without `result` it was left out, and `note` says why."""

    energy: str
    training: str
    test: str
    setting: Setting
    training_corpora: tuple[str, ...]
    test_generator: str
    test_corpus: str
    result: str | None = None
    note: str = ""


class GridSummaryConfig(Config):
    """All cells of a grid."""

    cells: tuple[CellConfig, ...] = Field(min_length=1)
