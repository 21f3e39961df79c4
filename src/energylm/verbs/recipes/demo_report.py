"""The demo's steps, made one after the other, and its page: what `energylm demo` runs."""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import model_identity
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_energy import Energy
from energylm.config.sampling import JointSampling, Truncation
from energylm.config.vocabulary import ENCODER
from energylm.data.corpus import Corpus
from energylm.data.document import SPLITS
from energylm.errors import ModelError
from energylm.files import interrupts_say_it_is_kept, read_json, write_json
from energylm.jobs.job import Job
from energylm.progress import format_seconds, say
from energylm.records import Record
from energylm.report.plots import loss_plot
from energylm.report.report import Numbers, Plot, Samples, Section, Text, write_report
from energylm.tables import Table, to_markdown
from energylm.training.journal import read_journal
from energylm.verbs.recipes.demo import ENERGY, LM, Demo, DemoEnergy
from energylm.verbs.recipes.demo_samples import SHOWN, SideBySide, curves_plot, draw_side_by_side, steering_table
from energylm.verbs.recipes.recipe import StepConfig, with_products
from energylm.verbs.table import verb_class

STEPS_FILE = "steps.json"  # seconds of each step when it was made
FOLDERS = {LM: "lm"}  # of steps whose folder is not called as they are
TINY_FOLDER = "tiny"  # of the story from scratch where it takes the place of the other
SMALL_ENCODER = "bit-tiny"
INTRODUCTION = """
A pretrained language model, and two energies on top of it. An energy reads a text and gives it one number; language
model and energy together are the joint model, whose text is chosen among candidates of the language model.

The first energy needs no training: it is the similarity to a sentence, as an encoder of sentences sees it. β says how
strongly it pulls. A large β is not free: the joint model moves away from the language model (KL, in nats), and fewer of
its candidates count (the effective sample size, ESS). Here β is the largest that the candidates carry.

The second energy was trained on the language model's own continuations: it learned to tell them from the real ones. Its
joint model is measured by perplexity on documents that nothing was trained on. That is an interval, because the joint
model's normaliser is estimated from samples; its ESS says how far it can be trusted.

Everything here came from commands that you can run on texts of your own; the last lines the demo printed name them.
""".strip()
TINY_INTRODUCTION = """
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
    language_model: str
    energy: Path
    prompt: str
    perplexity: Any  # the result of `perplexity`
    steered: tuple[SideBySide, ...] = ()  # none from scratch
    python: str = ""  # lines that draw the first of them again
    target: str = ""  # that they were steered towards

    def in_words(self) -> list[str]:
        """What was measured, and what to try next."""
        joint = self.perplexity.joint
        lines = ["Perplexity on unseen documents", "", *to_markdown(self.perplexity.table).splitlines()]
        lines.append(
            f"effective sample size: median {joint.ess.median:.1f}, smallest {joint.ess.smallest:.1f} of {joint.n} "
            "samples a context"
        )
        if joint.warning is not None:
            lines.append(f"what it means: {joint.warning}")
        if self.python:
            lines += ["The same in Python:", *(f"  {line}" for line in self.python.splitlines())]
        model, energy, prompt = (shlex.quote(str(word)) for word in (self.language_model, self.energy, self.prompt))
        steering, corpus = shlex.quote(f"similarity:{self.target}"), shlex.quote(str(self.corpus))
        steered = [
            f"  energylm generate {model} --energy {steering} --beta {side.chosen.beta:g} --prompt "
            f"{shlex.quote(side.prompt)} -n {side.curve.n}"
            for side in self.steered[:1]
        ]
        return [
            *lines,
            "Try next:",
            *steered,
            f"  energylm generate {model} --energy {energy} --prompt {prompt} --top-k 10",
            f"  energylm serve {model} --energy {energy}    # and open http://127.0.0.1:8000",
            f"  energylm lm sample {model} --prompt {prompt} -n 3 --top-k 10 --plain",
            f"  energylm corpus info {corpus}",
            "  energylm corpus build YOUR_TEXTS --output my-corpus && energylm lm train my-corpus --output my-lm",
        ]


@interrupts_say_it_is_kept()
def make_demo(demo: Demo, output: Path) -> DemoResult:
    """Make the demo in the folder `output`, or finish it."""
    if demo.tiny:
        return _make_tiny(demo, output)
    clock = _Clock(output / STEPS_FILE)
    try:
        for name in (demo.language_model, demo.encoder):
            if name in KNOWN_MODELS:
                _fetch(name)
    except ModelError as error:
        say(f"energylm: {error}; so the demo trains a tiny language model from scratch instead (energylm demo --tiny)")
        return _make_tiny(demo, output / TINY_FOLDER)
    clock.stop("models")
    return _make_pretrained(demo, output, clock)


def _make_pretrained(demo: Demo, output: Path, clock: "_Clock") -> DemoResult:
    steering, steps = demo.steering, demo.made_by()
    say(f"1/{len(steps) + 2} steering: {len(steering.prompts)} prompts towards {steering.target!r}")
    options = JointSampling(
        n=steering.n,
        max_new_tokens=steering.max_new_tokens,
        truncation=Truncation(top_k=steering.top_k),
        draws=SHOWN,
    )
    identity = [model_identity(demo.language_model), model_identity(demo.encoder), steering.target]
    load = partial(_steered_model, demo)
    steered = draw_side_by_side(
        load, steering.prompts, options, beta=None, seed=demo.seed, output=output / "steering", identity=identity
    )
    clock.stop("steering")
    for side in steered:
        say("\n".join(side.in_words()))
    made = _make_steps(steps, output, clock, _sizes(demo.energy, demo.encoder), first=2, total=len(steps) + 2)
    say(f"{len(steps) + 2}/{len(steps) + 2} samples, report")
    drawn = _trained_samples(demo.energy, demo.language_model, made.products[ENERGY], output, demo.seed)
    clock.stop("samples")
    first = steered[0].chosen
    curve_alt = (
        f"Mean similarity over KL. The first prompt goes from {steered[0].curve.points[0].score:.2f} at 0 nats to "
        f"{first.score:.2f} at {first.kl:.2f} nats."
    )
    sections: list[Section] = [
        Text("What this is", INTRODUCTION),
        Samples(f"Steered towards: {steering.target}", [sample for side in steered for sample in side.samples()]),
        Numbers("What steering costs", steering_table(steered)),
        Plot("Similarity by KL", curves_plot(steered), alt=curve_alt),
        *made.sections(),
        Samples("Texts of the trained energy", [sample for side in drawn for sample in side.samples()]),
        Numbers("Steps", clock.table()),
    ]
    report = write_report(output, title="energylm demo", sections=sections)
    return DemoResult(
        report,
        made.products["corpus"],
        demo.language_model,
        made.products[ENERGY],
        demo.energy.prompts[0],
        made.results["perplexity"],
        tuple(steered),
        _python_lines(demo, steered[0]),
        steering.target,
    )


def _steered_model(demo: Demo) -> ResidualModel:
    """At β = 1, where every candidate counts."""
    energy = Energy.from_similarity(demo.encoder, demo.steering.target, beta=1.0)
    return ResidualModel(LanguageModel.from_pretrained(demo.language_model), energy)


def _python_lines(demo: Demo, side: SideBySide) -> str:
    steering = demo.steering
    return "\n".join(
        [
            "from energylm import Energy, LanguageModel, ResidualModel",
            f"lm = LanguageModel.from_pretrained({demo.language_model!r})",
            f"energy = Energy.from_similarity({demo.encoder!r}, {steering.target!r}, beta={side.chosen.beta:g})",
            f"sample = ResidualModel(lm, energy).sample({side.prompt!r}, n={steering.n}, "
            f"max_new_tokens={steering.max_new_tokens}, top_k={steering.top_k}, seed={demo.seed})",
            "print(sample.text, sample.kl, sample.kl_error, sample.ess)",
        ]
    )


def _make_tiny(demo: Demo, output: Path) -> DemoResult:
    tiny, clock = demo.from_scratch, _Clock(output / STEPS_FILE)
    init = tiny.energy.init or _encoder()
    clock.stop("encoder")
    steps = tiny.made_by(init=init, seed=demo.seed)
    sizes = _sizes(tiny.energy, init) | {LM: f": {tiny.preset}, {tiny.steps} steps"}
    made = _make_steps(steps, output, clock, sizes, first=1, total=len(steps))
    model, energy = made.products[LM], made.products[ENERGY]
    drawn = _trained_samples(tiny.energy, str(model), energy, output, demo.seed)
    clock.stop("samples")
    sections: list[Section] = [
        Text("What this is", TINY_INTRODUCTION),
        Numbers("Corpus", corpus_table(Corpus.open(made.products["corpus"]))),
        loss_section("Loss of the language model", made.folders[LM] / "journal.jsonl", unit="nats per token"),
        *made.sections(),
        Samples("Samples", [sample for side in drawn for sample in side.samples()]),
        Numbers("Steps", clock.table()),
    ]
    report = write_report(output, title="energylm demo", sections=sections)
    prompt, result = tiny.energy.prompts[0], made.results["perplexity"]
    return DemoResult(report, made.products["corpus"], str(model), energy, prompt, result)


@dataclass(frozen=True)
class _MadeSteps:
    folders: dict[str, Path]
    products: dict[str, Path]
    results: dict[str, Any]

    def sections(self) -> list[Section]:
        """What both stories tell of the energy that was trained."""
        return [
            loss_section("Loss of the energy", self.folders[ENERGY] / "journal.jsonl", unit="nats per context"),
            Numbers("The energy on contexts it has not seen", energy_table(self.results[ENERGY])),
            *self.results["perplexity"].sections(),
        ]


def _make_steps(
    steps: Mapping[str, StepConfig],
    output: Path,
    clock: "_Clock",
    sizes: Mapping[str, str],
    *,
    first: int,
    total: int,
) -> _MadeSteps:
    """Run the steps, numbered from `first` of `total`; `sizes` is told when a step begins."""
    folders = {name: output / FOLDERS.get(name, name) for name in steps}
    products = {name: folders[name] / verb_class(step.make).product for name, step in steps.items()}
    results: dict[str, Any] = {}
    for number, (name, step) in enumerate(steps.items(), start=first):
        say(f"{number}/{total} {name}{sizes.get(name, '')}")
        values = with_products(step.config, {other: str(path) for other, path in products.items()})
        results[name] = verb_class(step.make).checked(values).run(Job(output=folders[name]))
        clock.stop(name)
    return _MadeSteps(folders, products, results)


def _sizes(energy: DemoEnergy, init: str) -> dict[str, str]:
    return {
        "negatives": f": {energy.contexts:,} contexts, {energy.k} continuations each",
        ENERGY: f": from {energy.init or init}, {energy.steps} steps",
        "perplexity": f" interval: {energy.measured_contexts} contexts, {energy.samples} samples each",
    }


def _trained_samples(
    energy: DemoEnergy, language_model: str, folder: Path, output: Path, seed: int
) -> list[SideBySide]:
    """Of each prompt one continuation by the language model and one by the joint model, from the same proposal."""
    options = JointSampling(
        n=energy.candidates,
        max_new_tokens=energy.max_new_tokens,
        truncation=Truncation(top_k=energy.top_k),
        draws=SHOWN,
        stop_at_eos=False,
    )
    load: Callable[[], ResidualModel] = partial(ResidualModel.load, language_model, str(folder), plain_text=True)
    identity = [model_identity(language_model), model_identity(folder)]
    return draw_side_by_side(
        load, energy.prompts, options, beta=1.0, seed=seed, output=output / "samples", identity=identity
    )


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
            [f"gain with {energy.gain.candidates} candidates, nats a continuation", energy.gain.nats],
            ["its standard error", energy.gain.standard_error],
            ["loss before calibration, nats a context", energy.loss_before_calibration],
            ["loss after calibration", energy.loss_after_calibration],
            ["calibration: scale", energy.scale],
            ["calibration: shift", energy.shift],
        ],
        convention=f"{energy.contexts} contexts held out from training and from calibration; an energy that knows "
        "nothing has an accuracy of 0.5 and a loss of 1.386",
    )


def _encoder() -> str:
    """The pretrained encoder, fetched if need be; a small network from scratch where it cannot be had."""
    try:
        _fetch(ENCODER)
        return ENCODER
    except ModelError as error:
        say(f"energylm: {error}")
        say(f"energylm: so the energy starts from random weights ({SMALL_ENCODER}) and will learn less")
        return SMALL_ENCODER


def _fetch(name: str) -> None:
    verb_class("models get").checked({"name": name}).run()
