"""Judge a trained tagger or translator on labelled data: `energylm seq2seq evaluate`.

Decodes as asked, scores the outputs (`evaluation.sequence_scores`), and measures cross-entropy and the spread of log Z
on the gold sequences (goyal2021 table 5.1).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.config.seq2seq import LOCAL, EvaluateSeq2SeqConfig
from energylm.data.sequence_pairs import SequencePairs
from energylm.evaluation.sequence_scores import SequenceScores
from energylm.tables import Table
from energylm.objectives.cross_entropy import IGNORED, cross_entropy_sum
from energylm.objectives.self_normalization import LogZ, log_z_moments, log_z_spread
from energylm.pipelines.seq2seq_data import Examples, encode_examples, read_examples
from energylm.progress import progress
from energylm.report.report import Numbers, write_report


@dataclass(frozen=True)
class Seq2SeqEvaluation:
    model: str
    decoding: dict[str, Any]
    scores: SequenceScores
    nats_per_symbol: float
    log_z: LogZ

    def to_json(self) -> dict[str, Any]:
        scores = {"quality": self.scores.quality, **self.scores.to_json()}
        return {
            "model": self.model,
            "decoding": self.decoding,
            "scores": scores,
            "nats_per_symbol": self.nats_per_symbol,
            "log_z": self.log_z.to_json(),
        }

    def tables(self) -> dict[str, Table]:
        gold = Table(
            ("nats per symbol", "mean log Z", "variance of log Z"),
            [(self.nats_per_symbol, self.log_z.mean, self.log_z.variance)],
            f"on the gold sequences, {self.log_z.positions:,} symbols",
        )
        return {"Outputs": self.scores.table(), "Gold sequences": gold}


def plan_evaluation(config: EvaluateSeq2SeqConfig) -> str:
    model, examples, _ = _open(config)
    return f"would decode {len(examples):,} sentences by {config.decoding.method} with {model.name} and judge them"


def evaluate_seq2seq(config: EvaluateSeq2SeqConfig, *, output: Path | str | None = None) -> Seq2SeqEvaluation:
    """Judge the model; with `output` also write the report's files there."""
    model, examples, pairs = _open(config)
    outputs: list[str] = []
    sources = [ids.tolist() for ids in pairs.sources]
    chunk = config.batch * 8
    with progress("decoding", total=len(pairs), unit="sentence") as bar:
        for start in range(0, len(sources), chunk):
            part = model.decode_ids(sources[start : start + chunk], config.decoding, batch=config.batch)
            outputs += [model.output(ids) for ids in part]
            bar.advance(len(part))
    nats, log_z = _gold_measures(model, pairs, batch=config.batch)
    result = Seq2SeqEvaluation(
        model=model.name,
        decoding=config.decoding.model_dump(),
        scores=examples.score(outputs, length_bins=config.length_bins),
        nats_per_symbol=nats,
        log_z=log_z,
    )
    if output is not None:
        sections = [Numbers(title, table) for title, table in result.tables().items()]
        write_report(output, title=f"{model.name} by {_described(config)}", sections=sections)
    return result


def _open(config: EvaluateSeq2SeqConfig) -> tuple[Seq2SeqModel, Examples, SequencePairs]:
    model = Seq2SeqModel.from_pretrained(config.model)
    model.check(config.decoding)
    examples = read_examples(model.task, config.data, limit=config.limit)
    pairs, _ = encode_examples(examples, model, unseen_tags=config.unseen_tags)
    return model, examples, pairs


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


def _described(config: EvaluateSeq2SeqConfig) -> str:
    decoding = config.decoding
    beam = "" if decoding.method == "greedy" else f" of {decoding.beam}"
    return f"{decoding.method}{beam}, {'log-softmaxed' if decoding.normalization == LOCAL else 'raw'} scores"
