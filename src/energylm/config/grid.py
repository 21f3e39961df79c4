"""A generalization grid: the four settings of Bakhtin et al. 2019 §4.4, table 1, and where a cell stands among them.

in-domain             training and test texts share the corpus and the generator's architecture
cross-architecture    the corpus alone
cross-corpus          the architecture alone
unseen                neither
"""

from typing import Literal

from pydantic import Field

from energylm.config.base import Config

Setting = Literal["in-domain", "cross-architecture", "cross-corpus", "unseen"]
SETTINGS: tuple[Setting, ...] = ("in-domain", "cross-architecture", "cross-corpus", "unseen")


class CellConfig(Config):
    """Where a cell stands in the grid; without `result` it was left out, and `note` says why."""

    energy: str = Field(description="The name of the energy.")
    training: str = Field(description="The name of the set that it learnt from.")
    test: str = Field(description="The name of the set that it is judged on.")
    setting: Setting = Field(description="What the two sets share.")
    training_corpora: tuple[str, ...] = Field(description="Corpora of the first.")
    test_generator: str = Field(description="What wrote the texts of the second.")
    test_corpus: str = Field(description="The corpus of the second.")
    result: str | None = Field(None, description="The folder of its discrimination.")
    note: str = Field("", description="Why it was left out.")
