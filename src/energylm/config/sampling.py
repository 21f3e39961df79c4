"""How a proposal narrows a language model's next-token distribution: temperature, then top-k, then top-p."""

from pydantic import Field

from energylm.config.base import Config

CONFIDENCE = 0.95  # of statements about finite samples, unless another is asked for


class Truncation(Config):
    """The proposal q(x_t | x_<t): the model's distribution, tempered, cut to its likeliest tokens, renormalised."""

    top_k: int | None = Field(None, ge=1, description="Keep the k likeliest tokens (the papers use 10); none = all.")
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Keep the smallest set of likeliest tokens whose probability reaches p; none = all.",
    )
    temperature: float = Field(1.0, gt=0, description="Divide the logits by this before truncating.")

    @property
    def is_identity(self) -> bool:
        """Whether the proposal is the model itself."""
        return self.top_k is None and self.top_p in (None, 1.0) and self.temperature == 1.0
