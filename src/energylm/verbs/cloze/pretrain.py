"""Cloze models from a corpus, to score text, to start energies from, to fine-tune: `energylm pretrain …`; and what such
runs cost by `models.compute`: one for `energylm plan`, several side by side for recipes (`PretrainCosts`), which shows
whether siblings have equal compute, and who pays for what.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from energylm.config.pretrain import (
    TWO_TOWER,
    LanguageModelSettings,
    NoiseKind,
    PretrainClozeConfig,
    PretrainConfig,
    PretrainElectraConfig,
    PretrainElectricConfig,
    PretrainMLMConfig,
    PretrainTwoTowerConfig,
)
from energylm.errors import ConfigError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import Record
from energylm.verbs.verb import Positional, TrainingVerb, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.cloze.pretraining import PretrainRun


class Pretrain(TrainingVerb, PretrainConfig):
    """What all families have. Killed runs go on where they stopped when run again; finished ones are not repeated."""

    shortcuts: ClassVar = {"steps": "training.steps", "seed": "training.seed"}
    kind_of_model: ClassVar[str]

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
        return self.kind_of_model

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.cloze.pretraining import describe_pretraining

        return describe_pretraining(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "PretrainRun":
        from energylm.verbs.cloze.pretraining import pretrain

        return pretrain(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import MEASURES, count_training, counted_steps
        from energylm.models.compute import Network, equal_steps, training_flops_per_step

        sizes = {"vocabulary_size": around.corpus(self.corpus).vocabulary_size}
        if self.start is None:
            verb, network = self, Network.of_preset(self.preset, self.network, **sizes)
        else:
            network = around.network(self.start)
            verb = self.shaped(**{name: getattr(network, name) for name in ("layers", "width", "heads", "inner_width")})
        training, share = self.training, 1.0
        if isinstance(verb, PretrainClozeConfig) and verb.compute is not None:
            training = training.model_copy(update={"steps": equal_steps(verb, verb.compute, **sizes)})
        if isinstance(self, PretrainMLMConfig):
            share = self.masking.rate
        validated = 0 if training.validation.every_steps is None else self.validation_windows or 0
        counted = count_training(
            network, training, around, rows=1, length=self.window, predicted=share, validated=validated
        )
        if not isinstance(self, PretrainMLMConfig):  # a noise model or a second tower beside the network
            steps = counted_steps(training, counted)
            more = steps * training_flops_per_step(verb, **sizes) / around.world / counted.quantities["training.flops"]
            for name in MEASURES:
                counted.quantities[f"training.{name}"] *= max(1.0, more)
        counted.product = network
        return counted


class PretrainMLM(Pretrain, PretrainMLMConfig):
    """Train a masked language model, the start of a bidirectional energy (BiT).

    Killed runs go on where they stopped when run again; finished ones are not repeated. The folder OUTPUT/model is for
    `energylm energy train`, and for transformers' AutoModelForMaskedLM and AutoModel.
    """

    examples = (
        "energylm pretrain mlm corpora/sotu --output runs/mlm --preset bit-tiny --steps 1000",
        "energylm pretrain mlm corpora/news -o runs/bit --preset bit-base --set training.precision=bf16 --dry-run",
    )
    kind_of_model = "masked-lm"


class PretrainElectric(Pretrain, PretrainElectricConfig):
    """Train Electric: an energy for every token, by noise-contrastive estimation against a two-tower noise model.

    OUTPUT/model scores text in one pass (`energylm score`), and is an encoder for transformers' AutoModel.
    """

    examples = (
        "energylm pretrain electric corpora/sotu --output runs/electric --steps 1000",
        "energylm pretrain electric corpora/wiki -o runs/e --preset bit-base --set training.preset=clark2020/pretrain",
        "energylm pretrain electric corpora/books -o runs/minilm --start minilm-l6 --steps 3000",
    )
    kind_of_model = "electric"


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
    kind_of_model = "two-tower"


RUNS: dict[str, type[PretrainConfig | LanguageModelSettings]] = {  # that can be compared
    "electric": PretrainElectricConfig,
    "electra": PretrainElectraConfig,
    "two-tower": PretrainTwoTowerConfig,
    "mlm": PretrainMLMConfig,
    "lm": LanguageModelSettings,
}


@dataclass(frozen=True)
class RunCost(Record):
    """Operations in millions a token of training text, and in all."""

    main_mflop_a_token: float
    noise_mflop_a_token: float
    steps: int
    tokens: int
    tflop: float
    noise_share: float  # of the compute


@dataclass(frozen=True)
class PretrainCostsResult(Record):
    runs: dict[str, RunCost]

    computed = ("spread",)

    @property
    def spread(self) -> float:
        """How far the dearest run lies above the cheapest, as a share."""
        spent = [run.tflop for run in self.runs.values()]
        return max(spent) / min(spent) - 1


class PretrainCosts(Verb):
    """Count what several pretraining runs would cost, side by side. None of them is made."""

    vocabulary_size: int = Field(ge=1, description="Of all networks.")
    compute: float | None = Field(
        None, gt=0, description="Training FLOPs that each run gets, in place of its own compute or steps."
    )
    runs: dict[str, dict[str, Any]] = Field(
        min_length=1, description=f"By name: `make` ({', '.join(RUNS)}) and the settings of the run, but no corpus."
    )

    @field_validator("runs")
    @classmethod
    def _families_are_known(cls, runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, settings in runs.items():
            if settings.get("make") not in RUNS:
                raise ValueError(f"run {name!r} makes {settings.get('make')!r}; expected one of {', '.join(RUNS)}")
        return runs

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return f"would count the compute of {', '.join(self.runs)}"

    def run(self, job: Job = DEFAULT_JOB) -> PretrainCostsResult:
        return PretrainCostsResult({name: self._cost(name, settings) for name, settings in self.runs.items()})

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import Counted

        return Counted()

    def _cost(self, name: str, settings: dict[str, Any]) -> RunCost:
        from energylm.models.compute import equal_steps, training_flops_per_step, training_flops_per_token

        values = {key: value for key, value in settings.items() if key != "make"}
        family = RUNS[settings["make"]]
        no_corpus = {"corpus": "none"} if "corpus" in family.model_fields else {}
        chosen: Any = family.checked({**no_corpus, **values}, origin=f"run {name!r}")
        sizes = {"vocabulary_size": self.vocabulary_size}
        parts = training_flops_per_token(chosen, **sizes)
        compute = self.compute or (chosen.compute if isinstance(chosen, PretrainClozeConfig) else None)
        steps = _own_steps(name, chosen) if compute is None else equal_steps(chosen, compute, **sizes)
        return RunCost(
            main_mflop_a_token=parts["main"] / 1e6,
            noise_mflop_a_token=parts.get("noise", 0.0) / 1e6,
            steps=steps,
            tokens=steps * chosen.window * chosen.training.global_batch,
            tflop=steps * training_flops_per_step(chosen, **sizes) / 1e12,
            noise_share=parts.get("noise", 0.0) / sum(parts.values()),
        )


def _own_steps(name: str, chosen: PretrainConfig | LanguageModelSettings) -> int:
    if chosen.training.steps is None:
        raise ConfigError(f"run {name!r} trains until validation stops improving; give steps or compute")
    return chosen.training.steps
