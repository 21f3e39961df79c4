"""Train a conditional masked language model on parallel text: `energylm pretrain cmlm` (goyal2021, §6.5).

The paper takes the model of Mask-Predict (Ghazvininejad et al. 2019): six layers each of width 512 with 8 heads and a
feed-forward of 2,048, and as many hidden target tokens as a uniform draw between one and all of them says.

OUTPUT/model/          the trained model, a folder for `ConditionalMaskedModel.from_pretrained` and `energylm mcmc`
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.base import Config
from energylm.config.training import TrainingConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import TrainingVerb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.chains.cmlm_training import CMLMRun


class ConditionalShape(Config):
    """A transformer encoder of the source and a bidirectional decoder of the target."""

    encoder_layers: int = Field(2, ge=1, description="Blocks that read the source.")
    decoder_layers: int = Field(2, ge=1, description="Blocks that read the target and look at the source.")
    width: int = Field(128, ge=1, description="Size of embeddings and hidden states.")
    heads: int = Field(4, ge=1, description="Attention heads; must divide the width.")
    feedforward_width: int | None = Field(None, ge=1, description="Inner size of the feed-forward; none = 4 × width.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings and residual branches.")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width, came {self.heads} heads and width {self.width}")
        return self

    def settings(self, *, vocabulary_size: int, longest: int) -> dict[str, Any]:
        """Of the network, by the names of its `config.json`."""
        return {
            "vocab_size": vocabulary_size,
            "hidden_size": self.width,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feedforward_width or 4 * self.width,
            "dropout": self.dropout,
            "max_position_embeddings": longest,
        }


class PretrainCMLM(TrainingVerb):
    """Train a conditional masked language model: a translator that fills in hidden tokens, given the source.

    OUTPUT/model translates by Mask-Predict, and is an energy of translations, both by `energylm mcmc --source`. Killed
    runs go on where they stopped when run again; finished ones are not repeated.
    """

    examples = (
        "energylm pretrain cmlm --train train.de --train train.en --valid val.de --valid val.en --output runs/cmlm",
        "energylm pretrain cmlm --config cmlm.yaml -o runs/wide --set network.width=256 --steps 20000 --dry-run",
    )
    shortcuts: ClassVar = {"steps": "training.steps", "seed": "training.seed"}

    train: tuple[str, ...] = Field(description="Parallel text: the source, then the target file, line by line.")
    valid: tuple[str, ...] = Field(description="The same for validation.")
    network: ConditionalShape = ConditionalShape()
    vocabulary_size: int = Field(4096, ge=300, description="Tokens of the BPE, one for both languages.")
    longest: int = Field(64, ge=2, description="The most tokens of a source or target; longer pairs are left out.")
    limit: int | None = Field(None, ge=1, description="Train on the first so many pairs; none = on all.")
    valid_limit: int | None = Field(None, ge=1, description="Validate on the first so many pairs; none = on all.")
    length_weight: float = Field(0.1, ge=0, description="Weight of the predicted length's loss beside the tokens'.")
    iterations: int = Field(4, ge=1, description="Of mask-predict, which translates the validation data for BLEU.")
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _two_files_each(self) -> Self:
        for name, files in (("train", self.train), ("valid", self.valid)):
            if len(files) != 2:
                raise ValueError(f"{name} came with {len(files)} files; parallel text is two, source and target")
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.chains.cmlm_training import describe

        return describe(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "CMLMRun":
        from energylm.verbs.chains.cmlm_training import train

        return train(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.chains.costs import count_cmlm

        return count_cmlm(self, around)
