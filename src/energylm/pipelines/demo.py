"""The whole story on the built-in corpus: language model, negatives, energy, perplexity interval, samples, report.

Each step is the pipeline that the user's own commands call, in one output folder, so a second run does only what is
missing and an interrupted one continues:

    corpus/   token shards      lm/   the language model      negatives/   what it wrote      energy/   the energy
    report.html, results.json, results.md and plots
"""

import time
from dataclasses import dataclass
from pathlib import Path

from energylm.bundles.residual_model import ResidualModel
from energylm.config.corpus import CorpusConfig
from energylm.config.demo import ENCODER, DemoConfig
from energylm.config.energy import TEXT, TOKENS
from energylm.config.generate import JointSampling
from energylm.config.negatives import NegativesConfig
from energylm.config.sampling import Truncation
from energylm.config.train_energy import (
    EnergyCheckpoints,
    EnergyOptimizer,
    EnergyTraining,
    EnergyValidation,
    TrainEnergyConfig,
)
from energylm.config.train_lm import TrainLMConfig
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.data.corpus import Corpus
from energylm.data.splits import SPLITS
from energylm.errors import ModelError
from energylm.files import interrupts_say_it_is_kept, read_json, write_json
from energylm.pipelines.build_corpus import build_corpus
from energylm.pipelines.get_model import get_model
from energylm.pipelines.negatives import make_negatives
from energylm.pipelines.train_energy import EnergyRun, train_energy
from energylm.pipelines.train_lm import LMRun, train_lm
from energylm.progress import format_seconds, say
from energylm.report.plots import loss_plot
from energylm.report.report import Numbers, Plot, Sample, Samples, Section, Text, write_report
from energylm.tables import Table
from energylm.training.journal import read_journal
from energylm.verbs.joint.perplexity import Perplexity
from energylm.verbs.joint.perplexity_report import PerplexityResult, perplexity_sections

STEPS_FILE = "steps.json"  # seconds of each step when it was made
VALIDATIONS = 5  # points of a validation curve
SMALL_ENCODER = "bit-tiny"
TOP_K = Truncation(top_k=10)  # of the papers
INTRODUCTION = """
A tiny language model was trained on a corpus for a minute or two. It then continued beginnings from the corpus, and an
energy, a second network that reads a whole passage and gives it one number, learned to tell the real continuations from
those. Language model and energy together are the joint model: its perplexity is an interval, because its normaliser has
to be estimated, and its text is chosen among candidates of the language model by their energies.

Do not expect sense of a model this small after so short a time. What to look at is the distance between the language
model's perplexity and the joint model's, and the effective sample size, which says how far the interval can be trusted:
a weak language model rarely writes what the energy asks for, so a few of its samples carry most of the weight.

Everything here came from commands that you can run on texts of your own; the last lines the demo printed name them.
""".strip()


@dataclass(frozen=True)
class Demo:
    """Where things are, and the numbers worth showing at once."""

    report: Path
    corpus_folder: Path
    run: LMRun
    energy: EnergyRun
    perplexity: PerplexityResult


@interrupts_say_it_is_kept()
def run_demo(config: DemoConfig, *, output: Path) -> Demo:
    """Make the demo in the folder `output`, or finish it."""
    corpus_folder, negatives_folder = output / "corpus", output / "negatives"
    clock = _Clock(output / STEPS_FILE)
    say("1/5 corpus")
    build_corpus(CorpusConfig(sources=(config.source,), vocabulary_size=config.vocabulary_size), output=corpus_folder)
    clock.stop("corpus")
    say(f"2/5 language model: {config.preset}, {config.steps} steps")
    run = train_lm(train_config(config, corpus_folder=corpus_folder), output=output / "lm")
    clock.stop("language model")
    say(f"3/5 negatives: {config.energy.contexts:,} contexts, {config.energy.k} continuations each")
    make_negatives(negatives_config(config, corpus_folder, run.model), output=negatives_folder)
    clock.stop("negatives")
    energy_settings = energy_config(config, corpus_folder, negatives_folder)
    clock.stop("encoder")
    say(f"4/5 energy: from {energy_settings.init}, reads {energy_settings.reads}, {config.energy.steps} steps")
    energy = train_energy(energy_settings, output=output / "energy")
    clock.stop("energy")
    say("5/5 perplexity interval, samples, report")
    measured = perplexity_verb(config, corpus_folder, run.model, energy.model).run()
    clock.stop("perplexity")
    joint = ResidualModel.load(str(run.model), str(energy.model), plain_text=True)
    samples = draw_samples(joint, config)
    clock.stop("samples")
    sections: list[Section] = [
        Text("What this is", INTRODUCTION),
        Numbers("Corpus", corpus_table(Corpus.open(corpus_folder))),
        loss_section("Loss of the language model", run.journal),
        loss_section("Loss of the energy", energy.folder / "journal.jsonl"),
        Numbers("The energy on contexts it has not seen", energy_table(energy)),
        *perplexity_sections(measured),
        Samples("Samples", samples),
        Numbers("Steps", clock.table()),
    ]
    report = write_report(output, title="energylm demo", sections=sections)
    return Demo(report, corpus_folder, run, energy, measured)


class _Clock:
    """How long each step took when it was made; kept in a file, so that a second run tells the same."""

    def __init__(self, file: Path) -> None:
        self._file, self._began = file, time.monotonic()
        self._seconds: dict[str, float] = read_json(file) if file.exists() else {}

    def stop(self, step: str) -> None:
        now = time.monotonic()
        if step not in self._seconds:
            self._seconds[step] = now - self._began
            write_json(self._file, self._seconds)
        self._began = now

    def table(self) -> Table:
        total = format_seconds(sum(self._seconds.values()))
        rows = sorted(self._seconds.items())
        return Table(["step", "seconds when made"], rows, convention=f"all steps together took {total}")


def train_config(config: DemoConfig, *, corpus_folder: Path) -> TrainLMConfig:
    every_steps = max(1, config.steps // VALIDATIONS)
    return TrainLMConfig(
        corpus=str(corpus_folder),
        preset=config.preset,
        window=config.window,
        validation_windows=config.validation_windows,
        training=TrainingConfig(
            seed=config.seed,
            steps=config.steps,
            global_batch=config.batch,
            optimizer=OptimizerConfig(learning_rate=config.learning_rate),
            validation=ValidationConfig(every_steps=every_steps),
            checkpoint=CheckpointConfig(every_steps=every_steps, keep=1),
        ),
    )


def negatives_config(config: DemoConfig, corpus_folder: Path, model: Path) -> NegativesConfig:
    return NegativesConfig(
        corpus=str(corpus_folder),
        lm=str(model),
        k=config.energy.k,
        length=config.energy.context + config.energy.generated,
        context_lengths=(config.energy.context,),
        contexts=config.energy.contexts,
        seed=config.seed,
    )


def energy_config(config: DemoConfig, corpus_folder: Path, negatives_folder: Path) -> TrainEnergyConfig:
    init = config.energy.init or _encoder()
    every_steps = max(1, config.energy.steps // VALIDATIONS)
    return TrainEnergyConfig(
        negatives=str(negatives_folder),
        corpus=str(corpus_folder),
        init=init,
        reads=TEXT if init == ENCODER else TOKENS,
        validation_contexts=256,
        validation_negatives=1,
        training=EnergyTraining(
            seed=config.seed,
            steps=config.energy.steps,
            global_batch=config.energy.batch,
            optimizer=EnergyOptimizer(learning_rate=config.energy.learning_rate),
            validation=EnergyValidation(every_steps=every_steps),
            checkpoint=EnergyCheckpoints(every_steps=every_steps, keep=1),
        ),
    )


def perplexity_verb(config: DemoConfig, corpus_folder: Path, model: Path, energy: Path) -> Perplexity:
    return Perplexity(
        language_model=str(model),
        energy=str(energy),
        source=str(corpus_folder),
        split="test",
        length=config.energy.context + config.energy.generated,
        prefix_tokens=config.energy.context,
        contexts=config.energy.measured_contexts,
        n=config.energy.samples,
        by_samples=True,
        seed=config.seed,
    )


def corpus_table(corpus: Corpus) -> Table:
    counts = [corpus.manifest.splits[split] for split in SPLITS]
    rows = [[split, c.documents, c.tokens, c.bytes] for split, c in zip(SPLITS, counts, strict=True)]
    return Table(
        ["split", "documents", "tokens", "bytes"],
        rows,
        convention=f"byte-level BPE of {corpus.vocabulary_size:,} tokens trained on the train split; every document's "
        f"end-of-text token counted; licence of the text: {corpus.manifest.licence or 'not stated'}",
    )


def loss_section(title: str, journal_file: Path) -> Plot:
    journal = read_journal(journal_file)
    train = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    first, last = validation[0], validation[-1]
    alt = (
        f"Loss in nats over training steps. Validation loss goes from {first[1]:.2f} at step {first[0]} "
        f"to {last[1]:.2f} at step {last[0]}; training loss goes from {train[0][1]:.2f} to {train[-1][1]:.2f}."
    )
    return Plot(title, loss_plot(train, validation), alt=alt)


def energy_table(energy: EnergyRun) -> Table:
    return Table(
        ["what", "value"],
        [
            ["accuracy, real against generated", energy.accuracy],
            ["loss before calibration, nats a context", energy.loss_before_calibration],
            ["loss after calibration", energy.loss_after_calibration],
            ["calibration: scale", energy.scale],
            ["calibration: shift", energy.shift],
        ],
        convention=f"{energy.contexts} contexts held out from training and from calibration; an energy that knows "
        "nothing has an accuracy of 0.5 and a loss of 1.386",
    )


def draw_samples(joint: ResidualModel, config: DemoConfig) -> list[Sample]:
    """Of each prompt one continuation by the language model and one by the joint model, from the same proposal."""
    options = JointSampling(
        n=config.energy.candidates, max_new_tokens=config.new_tokens, truncation=TOP_K, stop_at_eos=False
    )
    drawn = joint.sample_batch(list(config.prompts), options, seed=config.seed)
    samples = []
    for prompt, sample in zip(config.prompts, drawn, strict=True):
        chosen = f"joint: 1 of {options.n} by energy (ESS {sample.ess:.1f})"
        samples.append(Sample(label="language model", prompt=prompt, continuation=sample.candidates[0]))
        samples.append(Sample(label=chosen, prompt=prompt, continuation=sample.text))
    return samples


def _encoder() -> str:
    """The pretrained encoder, fetched if need be; a small network from scratch where it cannot be had."""
    try:
        get_model(ENCODER)
        return ENCODER
    except ModelError as error:
        say(f"energylm: {error}")
        say(f"energylm: so the energy starts from random weights ({SMALL_ENCODER}) and will learn less")
        return SMALL_ENCODER
