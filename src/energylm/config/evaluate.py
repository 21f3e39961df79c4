"""What `energylm evaluate` measures: judged sets that any scorer can be tried on."""

from pydantic import Field

from energylm.config.score import Normalise, ScorerConfig


class MinimalPairsConfig(ScorerConfig):
    """Pairs of sentences of which one is grammatical (BLiMP, Warstadt et al. 2020): does it score higher?"""

    model: str = Field(description="A model folder, a GGUF file, a known model or a hub name.")
    sources: tuple[str, ...] = Field(
        (), description="JSONL files of pairs, or folders of them; none: blimp/ in the folder that ENERGYLM_DATA names."
    )
    normalise: Normalise = Field("none", description="Compare scores divided by tokens or words.")
    limit: int | None = Field(None, ge=1, description="Use this many pairs of each paradigm, the first ones.")
