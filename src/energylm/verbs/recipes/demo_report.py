"""The demo's steps, made one after the other, and its page: what `energylm demo` runs."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.residual_model import ResidualModel
from energylm.config.sampling import JointSampling, Truncation
from energylm.data.corpus import Corpus
from energylm.data.document import SPLITS
from energylm.errors import ModelError
from energylm.files import interrupts_say_it_is_kept, read_json, write_json
from energylm.jobs.job import Job
from energylm.progress import format_seconds, say
from energylm.records import Record
from energylm.report.plots import loss_plot
from energylm.report.report import Numbers, Plot, Sample, Samples, Section, Text, write_report
from energylm.tables import Table, to_markdown
from energylm.training.journal import read_journal
from energylm.verbs.recipes.demo import ENCODER, ENERGY, LM, Demo
from energylm.verbs.recipes.recipe import with_products
from energylm.verbs.table import verb_class

STEPS_FILE = "steps.json"  # seconds of each step when it was made
FOLDERS = {LM: "lm"}  # of steps whose folder is not called as they are
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
class DemoResult(Record):
    """Where things are, and the numbers worth showing at once."""

    report: Path
    corpus: Path
    language_model: Path
    energy: Path
    prompt: str
    perplexity: Any  # the result of `perplexity`

    def in_words(self) -> list[str]:
        """What was measured, and what to try next."""
        joint = self.perplexity.joint
        lines = ["Perplexity on unseen documents", "", *to_markdown(self.perplexity.table).splitlines()]
        lines.append(f"effective sample size: median {joint.ess.median:.1f} of {joint.n} samples a context")
        if joint.warning is not None:
            lines.append(f"what it means: {joint.warning}")
        model, energy, prompt = (shlex.quote(str(word)) for word in (self.language_model, self.energy, self.prompt))
        return [
            *lines,
            "Try next:",
            f"  energylm generate {model} --energy {energy} --prompt {prompt} --top-k 10",
            f"  energylm serve {model} --energy {energy}    # and open http://127.0.0.1:8000",
            f"  energylm lm sample {model} --prompt {prompt} -n 3 --top-k 10 --plain",
            f"  energylm corpus info {shlex.quote(str(self.corpus))}",
            "  energylm corpus build YOUR_TEXTS --output my-corpus && energylm lm train my-corpus --output my-lm",
        ]


@interrupts_say_it_is_kept()
def make_demo(demo: Demo, output: Path) -> DemoResult:
    """Make the demo in the folder `output`, or finish it."""
    clock = _Clock(output / STEPS_FILE)
    init = demo.energy.init or _encoder()
    clock.stop("encoder")
    steps = demo.made_by(init=init)
    folders = {name: output / FOLDERS.get(name, name) for name in steps}
    products = {name: folders[name] / verb_class(step.make).product for name, step in steps.items()}
    results: dict[str, Any] = {}
    for number, (name, step) in enumerate(steps.items(), start=1):
        say(f"{number}/{len(steps)} {name}{_sizes(demo, init).get(name, '')}")
        values = with_products(step.config, {other: str(path) for other, path in products.items()})
        results[name] = verb_class(step.make).checked(values).run(Job(output=folders[name]))
        clock.stop(name)
    joint = ResidualModel.load(str(products[LM]), str(products[ENERGY]), plain_text=True)
    samples = draw_samples(joint, demo)
    clock.stop("samples")
    sections: list[Section] = [
        Text("What this is", INTRODUCTION),
        Numbers("Corpus", corpus_table(Corpus.open(products["corpus"]))),
        loss_section("Loss of the language model", folders[LM] / "journal.jsonl", unit="nats per token"),
        loss_section("Loss of the energy", folders[ENERGY] / "journal.jsonl", unit="nats per context"),
        Numbers("The energy on contexts it has not seen", energy_table(results[ENERGY])),
        *results["perplexity"].sections(),
        Samples("Samples", samples),
        Numbers("Steps", clock.table()),
    ]
    report = write_report(output, title="energylm demo", sections=sections)
    model, energy = products[LM], products[ENERGY]
    return DemoResult(report, products["corpus"], model, energy, demo.prompts[0], results["perplexity"])


def _sizes(demo: Demo, init: str) -> dict[str, str]:
    """What is told when a step begins."""
    return {
        LM: f": {demo.preset}, {demo.steps} steps",
        "negatives": f": {demo.energy.contexts:,} contexts, {demo.energy.k} continuations each",
        ENERGY: f": from {init}, {demo.energy.steps} steps",
        "perplexity": " interval, samples, report",
    }


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


def corpus_table(corpus: Corpus) -> Table:
    counts = [corpus.manifest.splits[split] for split in SPLITS]
    rows = [[split, c.documents, c.tokens, c.bytes] for split, c in zip(SPLITS, counts, strict=True)]
    return Table(
        ["split", "documents", "tokens", "bytes"],
        rows,
        convention=f"byte-level BPE of {corpus.vocabulary_size:,} tokens trained on the train split; every document's "
        f"end-of-text token counted; licence of the text: {corpus.manifest.licence or 'not stated'}",
    )


def loss_section(title: str, journal_file: Path, *, unit: str) -> Plot:
    journal = read_journal(journal_file)
    train = [(line["step"], line["loss"]) for line in journal if "loss" in line]
    validation = [(line["step"], line["validation_loss"]) for line in journal if "validation_loss" in line]
    first, last = validation[0], validation[-1]
    alt = (
        f"Loss in {unit} over training steps. Validation loss goes from {first[1]:.2f} at step {first[0]} "
        f"to {last[1]:.2f} at step {last[0]}; training loss goes from {train[0][1]:.2f} to {train[-1][1]:.2f}."
    )
    return Plot(title, loss_plot(train, validation, unit=unit), alt=alt)


def energy_table(energy: Any) -> Table:
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


def draw_samples(joint: ResidualModel, demo: Demo) -> list[Sample]:
    """Of each prompt one continuation by the language model and one by the joint model, from the same proposal."""
    options = JointSampling(
        n=demo.energy.candidates, max_new_tokens=demo.max_new_tokens, truncation=TOP_K, stop_at_eos=False
    )
    drawn = joint.sample_batch(list(demo.prompts), options, seed=demo.seed)
    samples = []
    for prompt, sample in zip(demo.prompts, drawn, strict=True):
        chosen = f"joint: 1 of {options.n} by energy (ESS {sample.ess:.1f})"
        samples.append(Sample(label="language model", prompt=prompt, continuation=sample.candidates[0]))
        samples.append(Sample(label=chosen, prompt=prompt, continuation=sample.text))
    return samples


def _encoder() -> str:
    """The pretrained encoder, fetched if need be; a small network from scratch where it cannot be had."""
    try:
        verb_class("models get").checked({"name": ENCODER}).run()
        return ENCODER
    except ModelError as error:
        say(f"energylm: {error}")
        say(f"energylm: so the energy starts from random weights ({SMALL_ENCODER}) and will learn less")
        return SMALL_ENCODER
