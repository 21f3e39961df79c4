"""Cloze models from a corpus, to score text, to start energies from, to fine-tune: `energylm pretrain …`."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.pretrain import (
    TWO_TOWER,
    NoiseKind,
    PretrainConfig,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
)
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.cloze.pretraining import PretrainRun


class Pretrain(Verb, PretrainConfig):
    """What all families have. Killed runs go on where they stopped when run again; finished ones are not repeated."""

    shortcuts: ClassVar = {"steps": "training.steps", "seed": "training.seed"}
    writes = "required"
    product = "model"

    corpus: Annotated[str, Positional("CORPUS")] = Field(
        description="The corpus folder, made by `energylm corpus build`."
    )

    @model_validator(mode="after")
    def _one_of_steps_and_compute(self) -> Self:
        compute, training = getattr(self, "compute", None), self.training
        if compute is not None and training.preset is None and "steps" in training.model_fields_set:
            raise ValueError(
                f"--steps {training.steps} and --compute {compute:g} came together; one follows from the other: give "
                "one of them"
            )
        return self

    @property
    def family(self) -> str:
        """Which kind of model it is, as its folder says."""
        raise NotImplementedError

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.cloze.pretraining import plan_pretraining

        return plan_pretraining(self, job.folder).describe(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "PretrainRun":
        from energylm.verbs.cloze.pretraining import pretrain

        return pretrain(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.cloze.pretrain_costs import count_pretraining

        return count_pretraining(self, around)

    def shown(self, result: "PretrainRun") -> str:
        return f"{result.model}: {result.summary()}\n"

    def remarks(self, result: "PretrainRun") -> list[str]:
        return []


class PretrainMLM(Pretrain, PretrainMLMConfig):
    """Train a masked language model, the start of a bidirectional energy (BiT).

    Killed runs go on where they stopped when run again; finished ones are not repeated. The folder OUTPUT/model is for
    `energylm energy train`, and for transformers' AutoModelForMaskedLM and AutoModel.
    """

    examples = (
        "energylm pretrain mlm corpora/sotu --output runs/mlm --preset bit-tiny --steps 1000",
        "energylm pretrain mlm corpora/news -o runs/bit --preset bit-base --set training.precision=bf16 --dry-run",
    )

    @property
    def family(self) -> str:
        return "masked-lm"


class PretrainElectric(Pretrain, PretrainElectricConfig):
    """Train Electric: an energy for every token, by noise-contrastive estimation against a two-tower noise model.

    OUTPUT/model scores text in one pass (`energylm score`), and is an encoder for transformers' AutoModel.
    """

    examples = (
        "energylm pretrain electric corpora/sotu --output runs/electric --steps 1000",
        "energylm pretrain electric corpora/wiki -o runs/e --preset bit-base --set training.preset=clark2020/pretrain",
    )

    @property
    def family(self) -> str:
        return "electric"


class PretrainElectra(Pretrain, PretrainElectraConfig):
    """Train ELECTRA: a detector of tokens that a small masked language model replaced.

    OUTPUT/model loads with transformers' ElectraForPreTraining and AutoModel, OUTPUT/model/noise is the generator.
    """

    examples = ("energylm pretrain electra corpora/sotu --output runs/electra --compute 1e13",)

    @property
    def family(self) -> str:
        return "electra-tt" if self.noise == TWO_TOWER else "electra"


class PretrainElectraTT(PretrainElectra):
    """Train ELECTRA-TT: ELECTRA with Electric's two-tower noise model, which makes it a scorer of text, too."""

    examples = ("energylm pretrain electra-tt corpora/sotu --output runs/electra-tt --compute 1e13",)

    noise: NoiseKind = Field(TWO_TOWER, description="What draws the replacements.")

    @model_validator(mode="after")
    def _is_a_scorer(self) -> Self:
        if self.noise != TWO_TOWER:
            raise ValueError(f"noise {self.noise} makes an ELECTRA: `energylm pretrain electra`")
        return self


class PretrainTwoTower(Pretrain, PretrainTwoTowerConfig):
    """Train a two-tower cloze model by itself: exact probabilities of every token given all others, in one pass.

    Each tower is a fraction of the shape, so that both together cost about one of its size.
    """

    examples = ("energylm pretrain two-tower corpora/sotu --output runs/two-tower --compute 1e13",)

    @property
    def family(self) -> str:
        return "two-tower"
