"""Texts that a language model scores, and texts that it writes: the work of `energylm lm score` and `lm sample`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from energylm.bundles.language_model import LanguageModel, SequenceScore
from energylm.data.text_files import existing, read_texts, read_whole
from energylm.data.windows import even_windows
from energylm.errors import DataError
from energylm.estimators.perplexity import PerplexityEstimate
from energylm.jobs.job import Job
from energylm.progress import progress
from energylm.records import Record
from energylm.verbs.lm.language_model import SampleLM, ScoreLM

TEXTS_AT_ONCE = 64  # scored together, so that results appear while the rest is still being read


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
