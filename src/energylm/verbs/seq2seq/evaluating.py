"""Decode labelled data, score the outputs, and measure cross-entropy and the spread of log Z on the gold sequences
(goyal2021 table 5.1); one evaluation, many, or the best of many."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.bundles.sequence_examples import Examples, encode_examples, read_examples
from energylm.config.seq2seq import LOCAL as LOG_SOFTMAXED
from energylm.config.seq2seq import DecodingConfig
from energylm.data.sequence_pairs import SequencePairs
from energylm.errors import ConfigError, DataError
from energylm.estimators.sequence_scores import EntityScores, TagScores, TranslationScores
from energylm.files import read_json, write_json
from energylm.objectives.cross_entropy import IGNORED, LogZ, cross_entropy_sum, log_z_moments, log_z_spread
from energylm.progress import progress
from energylm.records import LOCAL, Record
from energylm.report.report import Numbers, write_report
from energylm.tables import Cell, Table
from energylm.verbs.seq2seq.evaluate import EvaluateSeq2Seq, PickSeq2Seq

SCORES_FILE = "scores.json"
BATCHES_AT_ONCE = 8  # between two steps of the progress bar


@dataclass(frozen=True)
class Seq2SeqEvaluation(Record):
    model: str
    decoding: DecodingConfig
    scores: TagScores | EntityScores | TranslationScores
    nats_per_symbol: float
    log_z: LogZ
    report: Path | None = field(default=None, metadata=LOCAL)

    @property
    def table(self) -> Table:
        return self.scores.table

    @property
    def tables(self) -> dict[str, Table]:
        gold = Table(
            ("nats per symbol", "mean log Z", "variance of log Z"),
            [(self.nats_per_symbol, self.log_z.mean, self.log_z.variance)],
            f"on the gold sequences, {self.log_z.positions:,} symbols",
        )
        return {"Outputs": self.table, "Gold sequences": gold}


@dataclass(frozen=True)
class Scores(Record):
    sets: dict[str, dict[str, Seq2SeqEvaluation]]  # set → search → evaluation

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [name, search, each.scores.quality] for name, by in self.sets.items() for search, each in by.items()
        ]
        return Table(["set", "search", "quality"], rows)


@dataclass(frozen=True)
class Picked(Scores):
    """All scores of the model that is best on the deciding set, and its name."""

    picked: str
    deciding: dict[str, float]


def open_inputs(verb: EvaluateSeq2Seq) -> tuple[Seq2SeqModel, Examples, SequencePairs]:
    model = Seq2SeqModel.from_pretrained(verb.model)
    model.check(verb.decoding)
    examples = read_examples(model.task, verb.data, limit=verb.limit)
    pairs, _ = encode_examples(examples, model, unseen_tags=verb.unseen_tags)
    return model, examples, pairs


def evaluate(verb: EvaluateSeq2Seq, *, output: Path | None = None) -> Seq2SeqEvaluation:
    """Judge the model; with `output` also write the report's files there."""
    model, examples, pairs = open_inputs(verb)
    outputs: list[str] = []
    sources = [ids.tolist() for ids in pairs.sources]
    chunk = verb.batch * BATCHES_AT_ONCE
    with progress("decoding", total=len(pairs), unit="sentence") as bar:
        for start in range(0, len(sources), chunk):
            part = model.decode_ids(sources[start : start + chunk], verb.decoding, batch=verb.batch)
            outputs += [model.output(ids) for ids in part]
            bar.advance(len(part))
    nats, log_z = _gold_measures(model, pairs, batch=verb.batch)
    scores = examples.score(outputs, length_bins=verb.length_bins)
    result = Seq2SeqEvaluation(model.name, verb.decoding, scores, nats, log_z)
    if output is None:
        return result
    sections = [Numbers(title, table) for title, table in result.tables.items()]
    report = write_report(output, title=f"{model.name} by {_described(verb.decoding)}", sections=sections)
    return Seq2SeqEvaluation(model.name, verb.decoding, scores, nats, log_z, report)


def score(evaluations: Mapping[str, Mapping[str, EvaluateSeq2Seq]], *, output: Path | None = None) -> Scores:
    """All evaluations; with `output` they are kept there, for `pick`."""
    result = Scores({name: {search: evaluate(verb) for search, verb in by.items()} for name, by in evaluations.items()})
    if output is not None:
        write_json(output / SCORES_FILE, result.to_json())
    return result


def pick(verb: PickSeq2Seq) -> Picked:
    scores = {name: _kept_scores(Path(folder)) for name, folder in verb.among.items()}
    deciding: dict[str, float] = {}
    for name, scored in scores.items():
        try:
            deciding[name] = scored.sets[verb.by][verb.decoding].scores.quality
        except KeyError:
            raise ConfigError(f"{name!r} was not scored on {verb.by!r} by {verb.decoding!r}; score it so") from None
    best = max(deciding, key=deciding.__getitem__)
    return Picked(sets=scores[best].sets, picked=best, deciding=deciding)


def _kept_scores(folder: Path) -> Scores:
    if not (folder / SCORES_FILE).is_file():
        raise DataError(f"{folder} holds no {SCORES_FILE}; give a folder that the step `seq2seq scores` made")
    return Scores.from_json(read_json(folder / SCORES_FILE))


@torch.no_grad()
def _gold_measures(model: Seq2SeqModel, pairs: SequencePairs, *, batch: int) -> tuple[float, LogZ]:
    order = pairs.source_lengths.argsort(kind="stable")
    nats, moments_3 = 0.0, torch.zeros(3, dtype=torch.float64)
    for start in range(0, len(order), batch):
        arrays = pairs.gather(order[start : start + batch], ignored=IGNORED)
        source_BS, lengths_B, target_BT = (
            torch.from_numpy(arrays[name]) for name in ("source_BS", "source_lengths_B", "target_BT")
        )
        scores_BTV = model.network.scores(source_BS, lengths_B, target_BT.clamp(min=0))
        nats += float(cross_entropy_sum(scores_BTV, target_BT))
        moments_3 += log_z_moments(scores_BTV, target_BT != IGNORED)
    return nats / max(float(moments_3[0]), 1.0), log_z_spread(moments_3)


def _described(decoding: DecodingConfig) -> str:
    beam = "" if decoding.method == "greedy" else f" of {decoding.beam}"
    return f"{decoding.method}{beam}, {'log-softmaxed' if decoding.normalization == LOG_SOFTMAXED else 'raw'} scores"
