"""An energy that tells a corpus from a language model's continuations of it, and what it is worth on unfinished texts:
`energylm energy train`, `energylm energy value`."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from energylm.config.base import Folders, listed
from energylm.config.models import NCE, RANKING, REFUSE, TOKENS, EnergyKind, LongTexts, Objective, Pooling, Reads
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Short, TrainingVerb, Verb

if TYPE_CHECKING:
    from energylm.energies.prefix_value import PrefixValue
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.joint.training_energy import EnergyRun


class TrainEnergy(TrainingVerb):
    """Train an energy to tell a corpus from a language model's continuations of it, then calibrate and report it.

    The weights with the lowest validation loss are kept. Killed runs go on where they stopped when run again; finished
    ones are not repeated. Several processes: torchrun --nproc_per_node 2 -m energylm energy train …
    """

    examples = (
        "energylm energy train negatives/sotu --corpus corpora/sotu --init runs/tiny/model --output runs/unit",
        "energylm energy train negatives/sotu --corpus corpora/sotu --init minilm-l6 --reads text --output runs/minilm",
        "energylm energy train negatives/sotu --corpus corpora/sotu --init bit-base --preset deng2020/joint-bit-base "
        "-o bit",
        "energylm energy train negatives/books negatives/news --corpus corpora/books --corpus corpora/news "
        "--init bilstm-tiny --objective most-offending -k 8 --output runs/union",
    )
    shortcuts: ClassVar = {
        "preset": "training.preset",
        "steps": "training.steps",
        "batch": "training.global_batch",
        "learning_rate": "training.optimizer.learning_rate",
        "patience": "training.validation.patience_evaluations",
        "seed": "training.seed",
    }

    negatives: Annotated[Folders, Positional("NEGATIVES")] = Field(
        description="Folders of generated continuations, made by `energylm negatives`: one, or several of any "
        "generators, sides and corpora to learn from all of them, each in proportion to its contexts."
    )
    corpus: Folders = Field(
        description="The corpus folder that they were made from, for the real continuations: once for all, or once for "
        "each folder of negatives; all of the same tokenizer."
    )
    init: str = Field(
        description="What the energy starts from: a folder of a language model, masked model or encoder, a known model "
        "such as minilm-l6, a hub name; or random weights of a shape: tiny, mini, … (causal), bit-tiny, bit-base, …, "
        "bilstm-tiny, bilstm-small, bilstm-big, linear."
    )
    network: dict[str, Any] = Field({}, description="Keys of the shape to change, e.g. network.layers=3.")
    kind: EnergyKind | None = Field(
        None,
        description="unit (causal), bit (bidirectional), bilstm or linear: checks that --init is what was meant.",
    )
    pooling: Pooling | None = Field(
        None,
        description="mean over all tokens (deng2020), their sum, or the first position of a bit energy (bakhtin2019's "
        "BiTransf); none = mean, and the sum for a linear energy.",
    )
    reads: Reads = Field(
        TOKENS, description="tokens: the corpus's own ids; text: decoded and encoded again, for any other encoder."
    )
    long_texts: LongTexts = Field(REFUSE, description="Text longer than the encoder: refuse it, or cut-left.")
    language_model: str | None = Field(None, description="Refuse negatives that this language model did not write.")
    objective: Objective = Field(
        NCE,
        description="The loss: nce (deng2020 eq. 3; gives log-ratios), most-offending (bakhtin2019 eq. 1: that "
        "against the negative of lowest energy alone) or ranking (eq. 2, with a margin).",
    )
    margin: float = Field(
        1.0, gt=0, description="Of the ranking loss: by how much real text is to lie lower (eq. 2: 1; figure 3: 0.1)."
    )
    negatives_per_context: Annotated[int, Short("-k")] = Field(
        1, ge=1, description="Negatives of each context in a batch, a fresh choice each epoch (eq. 3: 1)."
    )
    validation: Annotated[tuple[str, ...] | None, BeforeValidator(listed)] = Field(
        None,
        min_length=1,
        description="Negatives of another split to validate on, once or several times; none = hold some contexts out.",
    )
    validation_fraction: float = Field(
        0.1, gt=0, lt=1, description="Without validation negatives: the share of contexts held out, by a hash."
    )
    validation_contexts: int | None = Field(
        1024, ge=2, description="At most so many validation contexts, half of them for calibration; none = all."
    )
    validation_negatives: int = Field(4, ge=1, description="Negatives of each validation context, at most k.")
    calibrate: bool = Field(True, description="Fit scale and shift on half of the validation contexts afterwards.")
    # Of `global_batch` a sequence is a context with its real continuation and its negatives. Most energies start from
    # trained weights, and overfit within a few hundred steps: a lower rate, more looks than at language models.
    training: TrainingConfig = TrainingConfig(
        optimizer=OptimizerConfig(learning_rate=1e-4),
        validation=ValidationConfig(every_steps=100),
        checkpoint=CheckpointConfig(every_steps=100),
    )

    @property
    def loss_words(self) -> str:
        """The loss by name, with its margin where it has one."""
        return f"ranking with margin {self.margin:g}" if self.objective == RANKING else self.objective

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.joint.training_energy import describe_training

        return describe_training(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "EnergyRun":
        from energylm.verbs.joint.training_energy import train_energy

        return train_energy(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.verbs.joint.costs import count_energy

        return count_energy(self, around)


class FitValue(Verb):
    """Fit what an energy of whole texts says of unfinished ones: the lookahead of sampler smc.

    Kept negatives are read again, cut short at several lengths, and a linear head is fitted to the energy's own states;
    no text is drawn and no network is trained.
    """

    examples = (
        "energylm energy value smollm2-135m negatives/sotu --corpus corpora/sotu --energy runs/minilm/model -o value",
    )
    writes = "required"

    language_model: Annotated[str, Positional("LM")] = Field(
        description="The model that wrote the negatives: a folder, a GGUF file, a known model or a hub name."
    )
    negatives: Annotated[str, Positional("NEGATIVES")] = Field(
        description="A folder of continuations, made by `energylm negatives`, untruncated."
    )
    corpus: str = Field(description="The corpus folder that they were made from.")
    energy: str = Field(description="An energy folder, a score as KIND:TEXT, or a YAML file of several.")
    beta: float | None = Field(None, description="How strongly the energy weighs; none: the energy's own.")
    contexts: int = Field(200, ge=8, description="So many contexts at most.")
    max_new_tokens: int | None = Field(
        None, ge=2, description="Tokens of whole texts, as they will be sampled; none: those of the negatives."
    )
    cuts: int = Field(7, ge=1, description="Lengths at which each continuation is read, evenly spread.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate, locate_energy
        from energylm.data.negatives import open_negatives_sources

        (source,) = open_negatives_sources([self.negatives], [self.corpus])
        contexts = min(self.contexts, len(source.negatives))
        return (
            f"would read {contexts:,} contexts with {source.negatives.k} negatives of {locate(self.language_model)}, "
            f"each cut at {self.cuts} lengths, by {locate_energy(self.energy)}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "PrefixValue":
        from energylm.verbs.joint.energy_inputs import fit_value

        self.check(job)
        return fit_value(self, job.folder)
