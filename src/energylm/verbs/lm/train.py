"""A language model from a corpus: `energylm lm train`."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from energylm.config.pretrain import LanguageModelSettings
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.lm.training import LMRun


class TrainLM(Verb, LanguageModelSettings):
    """Train a language model. Killed runs go on where they stopped when run again; finished ones are not repeated.

    The model is the subfolder model of the output. The published settings are presets of the training: --set
    training.preset=deng2020/base-lm. Several processes: torchrun --nproc_per_node 2 -m energylm lm train …
    """

    examples = (
        "energylm lm train corpora/sotu --output runs/tiny --preset tiny --steps 1000",
        "energylm lm train corpora/news --output runs/r2l --direction right-to-left --set training.micro_batch=8",
        "energylm lm train corpora/news --output runs/ralm --kind ralm --base runs/tiny/model --preset tiny",
        "energylm lm train corpora/books --output runs/base --preset big --set training.preset=deng2020/base-lm "
        "--dry-run",
    )
    shortcuts: ClassVar = {"steps": "training.steps", "seed": "training.seed"}
    writes = "required"
    product = "model"

    corpus: Annotated[str, Positional("CORPUS")] = Field(
        description="The corpus folder, made by `energylm corpus build`."
    )

    @property
    def title(self) -> str:
        """Which model it is, in words."""
        if self.kind == "ralm":
            return f"ralm of {self.base} and {self.preset}"
        return f"balm as large as {self.base} and {self.preset}" if self.base else self.pretrained or self.preset

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.lm.training import plan_lm

        return plan_lm(self, job.folder).describe(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "LMRun":
        from energylm.verbs.lm.training import train_lm

        return train_lm(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import count_training
        from energylm.models.compute import Network

        network = around.network(
            self.pretrained or self.preset,
            vocabulary_size=around.corpus(self.corpus).vocabulary_size,
            overrides=self.network,
        )
        if self.base is not None:
            base = around.network(self.base)
            if self.kind == "ralm":
                network = Network(**{**vars(network), "read_only": base})
            else:
                network = network.widened(base.parameters + network.parameters)
        validated = 0 if self.training.validation.every_steps is None else self.validation_windows or 0
        counted = count_training(
            network, self.training, around, rows=1, length=self.window, predicted=1.0, validated=validated
        )
        counted.product = network
        return counted

    def shown(self, result: "LMRun") -> str:
        perplexity = result.best_perplexity.summary() if result.best_perplexity else "not validated"
        return f"{result.model}: {perplexity}; step {result.best_step:,} of {result.steps:,}\n"
