"""A language model trained on a corpus, texts that it scores, texts that it writes: the work of `energylm lm`.

A training run is begun, continued, or finished already:

OUTPUT/model/          the trained model, a folder for `LanguageModel.from_pretrained`, there once the run is finished
OUTPUT/journal.jsonl   losses by step
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/training.json   the result; its presence means finished
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from energylm.bundles.causal_networks import with_adapters, without_adapters
from energylm.bundles.language_model import LanguageModel, SequenceScore
from energylm.bundles.model_folder import weights_sha256
from energylm.data.corpus import Corpus
from energylm.data.text_files import existing, read_texts, read_whole
from energylm.data.tokenizer import tokenizer_sha256
from energylm.data.windows import Windows, even_windows
from energylm.errors import ConfigError, DataError, ModelError, VocabularyMismatch
from energylm.estimators.perplexity import PerplexityEstimate
from energylm.files import read_json, write_json
from energylm.jobs.job import Job
from energylm.models.causal import CausalLanguageModel
from energylm.models.presets import build_network, count_parameters, width_for
from energylm.models.ralm import RalmLM
from energylm.progress import progress
from energylm.randomness import seeded
from energylm.records import Record
from energylm.training.engine import state_of_run, train
from energylm.training.language_model_task import LanguageModelTask
from energylm.training.state import TrainedRun
from energylm.training.task import Share
from energylm.verbs.lm.language_model import SampleLM, ScoreLM, TrainLM

START_FILE = "start.json"  # in a run's folder: how good the model was that training started from
TEXTS_AT_ONCE = 64  # scored together, so that results appear while the rest is still being read


@dataclass(frozen=True, kw_only=True)
class LMRun(TrainedRun):
    """What came of it. Perplexities are None where nothing was validated."""

    final_perplexity: PerplexityEstimate | None  # after the last step
    best_perplexity: PerplexityEstimate | None  # of the saved weights
    start_bits_per_byte: float | None = None  # of the model that training started from, on the same windows


def train_lm(verb: TrainLM, output: Path) -> LMRun:
    """Train into the folder `output`, or continue the run that it holds. A finished run is left as it is."""
    corpus, train_windows, valid_windows = _open(verb)
    network = _build(verb, corpus)
    task = LanguageModelTask(
        network,
        train_windows,
        valid_windows,
        seed=verb.training.seed,
        global_batch=verb.training.global_batch,
        direction=verb.direction,
        max_valid_windows=verb.validation_windows,
        valid_batch=verb.training.micro_batch or verb.training.global_batch,
        fingerprint=_fingerprint(verb, corpus),
        save_model=lambda trained, folder: _save(trained, folder, verb=verb, corpus=corpus),
    )
    start = _start_validation(verb, task, output)
    result = train(task, verb.training, folder=output)
    before = _perplexity(start, verb, corpus, task)
    return LMRun.of(
        result,
        output,
        final_perplexity=_perplexity(result.validation, verb, corpus, task),
        best_perplexity=_perplexity(result.best_validation, verb, corpus, task),
        start_bits_per_byte=None if before is None else before.bits_per_byte,
    )


def _start_validation(verb: TrainLM, task: LanguageModelTask, output: Path) -> dict[str, float]:
    """The validation numbers of what training starts from, kept in the run's folder; none for random weights."""
    kept = output / START_FILE
    if verb.pretrained is None or verb.training.validation.every_steps is None:
        return {}
    if not kept.is_file():
        task.model.eval()
        with torch.no_grad():
            sums = task.validate(task.model, Share())
        write_json(kept, {name: total / count for name, (total, count) in sums.items()})
    values: dict[str, float] = read_json(kept)
    return values


def describe_training(verb: TrainLM, output: Path) -> str:
    """Check all inputs and say what `train_lm` would do. Writes nothing."""
    corpus, windows, _ = _open(verb)
    with torch.device("meta") if verb.pretrained is verb.base is None else nullcontext():
        network = _build(verb, corpus)
    return (
        f"{output}: {state_of_run(output)}: {verb.title}, {count_parameters(network):,} parameters, {verb.direction}, "
        f"{verb.training.length_words(len(windows))} of {verb.training.global_batch} windows of {verb.window} tokens "
        f"({len(windows):,} windows)"
    )


def _open(verb: TrainLM) -> tuple[Corpus, Windows, Windows | None]:
    corpus = Corpus.open(verb.corpus)
    validates = verb.training.validation.every_steps is not None
    return (
        corpus,
        Windows(corpus, "train", length=verb.window),
        Windows(corpus, "valid", length=verb.window) if validates else None,
    )


def _build(verb: TrainLM, corpus: Corpus) -> PreTrainedModel:
    if verb.pretrained is not None:
        if verb.network:
            raise ConfigError(
                f"network.{next(iter(verb.network))} changes a preset, but the shape is {verb.pretrained}'s"
            )
        network = _existing(verb.pretrained, verb, corpus)
        return with_adapters(network, verb.lora_rank, seed=verb.training.seed)
    if verb.base is None:
        return _new(verb, corpus, overrides=verb.network)
    base = _existing(verb.base, verb, corpus)
    if verb.kind == "ralm":
        return RalmLM.of(base, _new(verb, corpus, overrides=verb.network))
    with torch.device("meta"):  # only to be counted
        residual = _new(verb, corpus, overrides=verb.network)
    width = width_for(
        count_parameters(base) + count_parameters(residual),
        verb.preset,
        vocabulary_size=corpus.vocabulary_size,
        max_length=verb.window,
        overrides=verb.network,
    )
    return _new(verb, corpus, overrides={**verb.network, "width": width})


def _new(verb: TrainLM, corpus: Corpus, *, overrides: Mapping[str, Any]) -> PreTrainedModel:
    with seeded(verb.training.seed, "initialisation"):
        return build_network(
            verb.preset,
            vocabulary_size=corpus.vocabulary_size,
            max_length=verb.window,
            eos_token_id=corpus.end_token_id,
            overrides=overrides,
        )


def _existing(name: str, verb: TrainLM, corpus: Corpus) -> PreTrainedModel:
    """The network of a model that reads this corpus, in this direction, in windows as long as these."""
    model = LanguageModel.from_pretrained(name, device="cpu", dtype=torch.float32)
    if tokenizer_sha256(model.tokenizer) != corpus.manifest.tokenizer.sha256:
        raise VocabularyMismatch(
            f"{name} reads other tokens than {verb.corpus} holds; build the corpus with "
            f"--tokenizer {shlex.quote(str(name))}"
        )
    if model.model.direction != verb.direction:
        raise ConfigError(f"{name} reads {model.model.direction}; set direction to that, not {verb.direction}")
    if model.model.max_length is not None and verb.window > model.model.max_length:
        raise ModelError(f"{name} holds {model.model.max_length} tokens, not {verb.window}; set a shorter window")
    return model.model.network


def _fingerprint(verb: TrainLM, corpus: Corpus) -> dict[str, Any]:
    network = {"preset": verb.preset, "network": verb.network}
    return {
        "corpus": corpus.manifest.identity,
        "window": verb.window,
        "validation_windows": verb.validation_windows,
        **({"pretrained": weights_sha256(verb.pretrained)} if verb.pretrained else network),
        **({"lora_rank": verb.lora_rank} if verb.lora_rank else {}),
        **({"kind": verb.kind, "base": weights_sha256(verb.base)} if verb.base else {}),
    }


def _save(network: nn.Module, folder: Path, *, verb: TrainLM, corpus: Corpus) -> None:
    network = without_adapters(network)
    end = corpus.end_token_id
    model = CausalLanguageModel(network, start_token_id=end, eos_token_id=end, direction=verb.direction)
    provenance = {
        "corpus": Path(verb.corpus).name,
        "corpus_identity": corpus.manifest.identity,
        "licence": corpus.manifest.licence,
        "config": verb.model_dump(mode="json", exclude={"corpus", "pretrained", "base"}),
    }
    LanguageModel(model, corpus.tokenizer, name=folder.parent.name, provenance=provenance).save_pretrained(folder)


def _perplexity(
    validation: dict[str, float], verb: TrainLM, corpus: Corpus, task: LanguageModelTask
) -> PerplexityEstimate | None:
    if not validation:
        return None
    nats, windows = validation["loss"], len(task.validated_windows)
    return PerplexityEstimate(
        value=math.exp(nats) if nats < 700 else math.inf,
        standard_error=None,
        nats_per_token=nats,
        bits_per_byte=nats / math.log(2) * corpus.manifest.splits["valid"].tokens_per_byte,
        sequences=windows,
        tokens=windows * (verb.window - 1),
        bytes=None,
        convention=f"nats per token of the corpus's tokenizer ({corpus.vocabulary_size:,} tokens), {verb.direction}, "
        f"packed windows of {verb.window} tokens of split valid whose first token is given, end-of-text counted; "
        "bits per byte at the split's tokens per byte",
    )


@dataclass(frozen=True)
class LMScores(Record):
    perplexity: PerplexityEstimate  # of all together
    scores: list[SequenceScore]  # in the order of the file

    def summary(self) -> str:
        return self.perplexity.summary()


@dataclass(frozen=True)
class LMSample(Record):
    prompt: str
    text: str  # what was added, without special tokens
    tokens: list[int]
    log_prob: float  # under the model
    proposal_log_prob: float  # under the truncated proposal


@dataclass(frozen=True)
class LMSamples(Record):
    samples: list[LMSample]


def score_texts(verb: ScoreLM, job: Job) -> LMScores:
    """Score every text of the source, or windows of it all."""
    model, file = LanguageModel.from_pretrained(verb.language_model), existing(verb.source)
    convention = model.convention(prefix_tokens=verb.prefix_tokens, eos=verb.eos, of_ids=verb.windows is not None)
    sequences: Iterator[str | list[int]] = read_texts(file, field=verb.field)
    if verb.windows is not None:
        tokens = model.encode(read_whole(file, field=verb.field))
        sequences = iter(even_windows(tokens, windows=verb.windows, length=verb.length, file=file))
        convention = f"{verb.windows} evenly spaced windows of {verb.length} tokens, {convention}"
    scores: list[SequenceScore] = []
    with progress("scoring", total=verb.windows, unit="text") as bar:
        while group := list(islice(sequences, TEXTS_AT_ONCE)):
            for score in model.score(group, prefix_tokens=verb.prefix_tokens, eos=verb.eos):
                scores.append(score)
                if job.emit is not None:
                    job.emit(_line(score, per_token=verb.per_token))
            bar.advance(len(group))
    if not scores:
        raise DataError(f"{file} holds no text; give a file with one text a line")
    return LMScores(model.perplexity_of(scores, convention=convention), scores)


def _line(score: SequenceScore, *, per_token: bool) -> str:
    row = score.to_json()
    if not per_token:
        del row["token_log_probs"]
    return json.dumps(row)


def sample_texts(verb: SampleLM, job: Job) -> LMSamples:
    """n continuations of each prompt; an empty prompt starts a document."""
    model = LanguageModel.from_pretrained(verb.language_model)
    with progress("sampling", total=len(verb.prompt) * verb.n * verb.max_new_tokens, unit="token") as bar:
        drawn = model.sample(
            list(verb.prompt),
            n=verb.n,
            max_new_tokens=verb.max_new_tokens,
            **verb.truncation.model_dump(),
            stop_at_eos=verb.stop_at_eos,
            seed=verb.seed,
            progress=bar,
        )
    samples = [LMSample(prompt=verb.prompt[row.pop("context")], **row) for row in drawn.rows()]
    if job.emit is not None:
        for sample in samples:
            job.emit(_text(sample, model) if verb.plain else json.dumps(sample.to_json(), ensure_ascii=False))
    return LMSamples(samples)


def _text(sample: LMSample, model: LanguageModel) -> str:
    """Prompt and continuation as they are read."""
    return f"{sample.prompt}{sample.text}\n" if model.codec.forward else f"{sample.text}{sample.prompt}\n"
