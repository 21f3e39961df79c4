"""The story so far on the built-in corpus: tokenise, train a tiny language model, measure it, sample from it, report.

Each step is the pipeline that the user's own commands call, in one output folder, so a second run does only what is
missing and an interrupted one continues:

    corpus/   token shards        lm/   the training run        report.html, results.json, results.md, loss.png
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energylm.bundles.language_model import LanguageModel
from energylm.config.corpus import CorpusConfig
from energylm.config.demo import DemoConfig
from energylm.config.sampling import Truncation
from energylm.config.train_lm import TrainLMConfig
from energylm.config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, ValidationConfig
from energylm.data.corpus import Corpus
from energylm.data.splits import SPLITS
from energylm.data.windows import Windows
from energylm.estimators.perplexity import Perplexity
from energylm.evaluation.plots import loss_plot
from energylm.evaluation.report import Numbers, Plot, Sample, Samples, Section, Text, write_report
from energylm.evaluation.tables import Table
from energylm.pipelines.build_corpus import build_corpus
from energylm.pipelines.train_lm import LMRun, train_lm
from energylm.progress import say
from energylm.training.journal import read_journal

VALIDATIONS = 6  # points of the validation curve
PROPOSALS = {"top-k 10": Truncation(top_k=10), "untruncated": Truncation()}
INTRODUCTION = """
A byte-level tokenizer was trained on a corpus, a tiny language model was trained on its tokens for a minute or two, and
these are its loss, its perplexity on documents it has not seen, and what it writes. Do not expect sense of a model this
small after so short a time: it has picked up spelling, common phrases and some grammar.

Everything here came from commands that you can run on texts of your own; the last lines the demo printed name them.
""".strip()


@dataclass(frozen=True)
class Demo:
    """Where things are, and the numbers worth showing at once."""

    report: Path
    corpus_folder: Path
    run: LMRun
    perplexity: Table


def run_demo(config: DemoConfig, *, output: Path) -> Demo:
    """Make the demo in the folder `output`, or finish it."""
    corpus_folder = output / "corpus"
    say("1/3 corpus")
    build_corpus(corpus_config(config), output=corpus_folder)
    corpus = Corpus.open(corpus_folder)
    say(f"2/3 language model: {config.preset}, {config.steps} steps")
    run = train_lm(train_config(config, corpus_folder=corpus_folder), output=output / "lm")
    say("3/3 perplexity, samples, report")
    model = LanguageModel.from_pretrained(run.model)
    perplexity = perplexity_table(validation_perplexity(model, corpus, config), vocabulary_size=corpus.vocabulary_size)
    sections: list[Section] = [
        Text("What this is", INTRODUCTION),
        Numbers("Corpus", corpus_table(corpus)),
        loss_section(run),
        Numbers("Perplexity on unseen documents", perplexity),
        Samples("Samples", draw_samples(model, config)),
    ]
    report = write_report(output, title="energylm demo", sections=sections)
    return Demo(report, corpus_folder, run, perplexity)


def corpus_config(config: DemoConfig) -> CorpusConfig:
    return CorpusConfig(sources=(config.source,), vocabulary_size=config.vocabulary_size)


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


def corpus_table(corpus: Corpus) -> Table:
    counts = [corpus.manifest.splits[split] for split in SPLITS]
    rows = [[split, c.documents, c.tokens, c.bytes] for split, c in zip(SPLITS, counts, strict=True)]
    return Table(
        ["split", "documents", "tokens", "bytes"],
        rows,
        convention=f"byte-level BPE of {corpus.vocabulary_size:,} tokens trained on the train split; every document's "
        f"end-of-text token counted; licence of the text: {corpus.manifest.licence or 'not stated'}",
    )


def loss_section(run: LMRun) -> Plot:
    journal = read_journal(run.journal)
    train = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    first, last = validation[0], validation[-1]
    alt = (
        f"Loss in nats per token over training steps. Validation loss goes from {first[1]:.2f} at step {first[0]} "
        f"to {last[1]:.2f} at step {last[0]}; training loss goes from {train[0][1]:.2f} to {train[-1][1]:.2f}."
    )
    return Plot("Loss", loss_plot(train, validation), alt=alt)


def validation_perplexity(model: LanguageModel, corpus: Corpus, config: DemoConfig) -> Perplexity:
    """Over windows spread evenly over the validation split, the first token of each given."""
    windows = Windows(corpus, "valid", length=config.window)
    wanted = min(config.validation_windows, len(windows))
    tokens_BT = windows.gather(np.arange(wanted, dtype=np.int64) * len(windows) // wanted)
    return model.perplexity(tokens_BT.tolist(), prefix_tokens=1)


def perplexity_table(measured: Perplexity, *, vocabulary_size: int) -> Table:
    """The model beside the guess that knows nothing, so that a number means something to a newcomer."""
    nats = math.log(vocabulary_size)
    uniform_bits = nats * measured.tokens / (math.log(2) * measured.bytes) if measured.bytes else None
    return Table(
        ["model", "perplexity", "standard error", "nats per token", "bits per byte"],
        [
            ["all tokens equally likely", float(vocabulary_size), None, nats, uniform_bits],
            [
                "language model",
                measured.value,
                measured.standard_error,
                measured.nats_per_token,
                measured.bits_per_byte,
            ],
        ],
        convention=f"{measured.sequences} packed windows of documents not trained on, {measured.tokens:,} tokens, "
        f"end-of-text between documents counted; {measured.convention}",
    )


def draw_samples(model: LanguageModel, config: DemoConfig) -> list[Sample]:
    """One continuation of each prompt by each proposal."""
    drawn = {
        name: model.sample(
            config.prompts, max_new_tokens=config.new_tokens, truncation=truncation, stop_at_eos=False, seed=config.seed
        )
        for name, truncation in PROPOSALS.items()
    }
    return [
        Sample(label=name, prompt=prompt, continuation=drawn[name].texts[number][0])
        for number, prompt in enumerate(config.prompts)
        for name in PROPOSALS
    ]
