"""The work of training, decoding and judging taggers and translators, counted for `energylm plan`.

One sequence of mean length goes through the network of the chosen size by the chosen loss or search, and torch counts
(`jobs.counting`). What a data set holds is read from its files: how many sequences, how long, how many tags.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch

from energylm.bundles.seq2seq_model import search
from energylm.bundles.sequence_examples import Examples, read_examples
from energylm.config.seq2seq import GREEDY, TRANSLATION, DecodingConfig, TaskName
from energylm.data.sequence_pairs import SequencePairs
from energylm.errors import ConfigError
from energylm.jobs.costs import Counted, NetworkSettings, Surroundings, bytes_per_token
from energylm.jobs.counting import count_task, scaled, work_of
from energylm.models.compute import Work
from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig
from energylm.objectives.search_losses import step_cost
from energylm.randomness import seeded
from energylm.training.sequence_pair_task import Seq2SeqTask
from energylm.training.task import Share

if TYPE_CHECKING:
    from energylm.verbs.seq2seq.decode import DecodeSeq2Seq
    from energylm.verbs.seq2seq.evaluate import EvaluateSeq2Seq
    from energylm.verbs.seq2seq.line import LineSeq2Seq
    from energylm.verbs.seq2seq.train import TrainSeq2Seq


@dataclass(frozen=True)
class DataSize:
    sequences: int
    source: int  # tokens of a sequence, on average
    target: int

    @classmethod
    def of(cls, examples: Examples, *, vocabulary_size: int, longest: int | None = None) -> "DataSize":
        """Of tagged words, or of texts whose tokens are estimated from their bytes."""
        source, target = (
            [len(each[0].encode()) / bytes_per_token(vocabulary_size) for each in side]
            if examples.task == TRANSLATION
            else [len(each) for each in side]
            for side in (examples.sources, examples.targets)
        )
        kept = [n for n, pair in enumerate(zip(source, target, strict=True)) if longest is None or max(pair) <= longest]
        means = [math.ceil(fmean([side[n] for n in kept] or [1.0])) for side in (source, target)]
        return cls(len(kept), means[0], means[1] + (examples.task == TRANSLATION))  # a translation ends with EOS

    def pair(self, *, repeated: int = 1) -> SequencePairs:
        return SequencePairs([[1] * self.source] * repeated, [[1] * self.target] * repeated)


def count_training(verb: "TrainSeq2Seq", around: Surroundings) -> Counted:
    """Of all restarts; `init` decides the network's shape where it is given."""
    examples = _examples(verb.task, verb.train, verb.limit)
    given = None if verb.init is None else around.settings(verb.init)
    values = given.values if given is not None else _new_settings(verb, examples)
    network = _network(values)
    data = DataSize.of(examples, vocabulary_size=values["source_vocab_size"], longest=verb.longest)
    valid_examples = _examples(verb.task, verb.valid, verb.valid_limit)
    valid = DataSize.of(valid_examples, vocabulary_size=values["source_vocab_size"])
    task = Seq2SeqTask(
        network,
        data.pair(repeated=verb.training.global_batch),
        valid.pair(),
        objective=verb.objective,
        cost=step_cost(verb.objective.cost, vocabulary_size=values["vocab_size"], outside_id=0),
        decoding=verb.decoding,
        decode=search,
        judge=lambda indices, outputs: {},
        seed=0,
        global_batch=verb.training.global_batch,
        save_model=lambda model, folder: None,
    )
    counted = count_task(
        task,
        verb.training,
        around,
        rows=1,
        validate=lambda: task.validate(network.train(False), Share()),
        validated=valid.sequences,
    )
    for name in counted.quantities:
        counted.quantities[name] *= verb.restarts
    counted.product = NetworkSettings(values, verb.task)
    return counted


def count_evaluations(verbs: "Iterable[EvaluateSeq2Seq]", around: Surroundings) -> Counted:
    """Decoding of every data set, and one pass over its gold sequences."""
    counted = Counted()
    for verb in verbs:
        model = _trained(verb.model, around)
        examples = _examples(cast(TaskName, model.task), verb.data, verb.limit)
        data = DataSize.of(examples, vocabulary_size=model.values["source_vocab_size"])
        work = _evaluating(tuple(model.values.items()), data, verb.decoding)
        counted.add("searching", scaled(work, data.sequences, passes=max(1.0, data.sequences / verb.batch)))
    return counted


def count_decoding(verb: "DecodeSeq2Seq", around: Surroundings) -> Counted:
    """Of a file's lines; a translation is counted to be as long as its source."""
    model, lines = _trained(verb.model, around), Path(verb.source).read_text(encoding="utf-8").splitlines()
    texts = [(line,) if model.task == TRANSLATION else tuple(line.split()) for line in lines if line.strip()]
    examples = Examples(cast(TaskName, model.task), (verb.source,), texts, texts)
    data = DataSize.of(examples, vocabulary_size=model.values["source_vocab_size"])
    work = _decoding(_network(model.values).train(False), data, verb.decoding)
    counted = Counted()
    counted.add("searching", scaled(work, data.sequences, passes=max(1.0, data.sequences / verb.batch)))
    return counted


def count_line(verb: "LineSeq2Seq", around: Surroundings) -> Counted:
    """Every point of every line is a pass over the sequences that feeds predictions back: greedy decoding's work."""
    model = _trained(verb.model, around)
    examples = _examples(cast(TaskName, model.task), verb.data, verb.limit)
    data = DataSize.of(examples, vocabulary_size=model.values["source_vocab_size"])
    passes = verb.points * (1 + len(verb.alphas))
    work = _decoding(_network(model.values).train(False), data, DecodingConfig(method=GREEDY))
    counted = Counted()
    counted.add("searching", scaled(work, passes * data.sequences, passes=passes))
    return counted


def _trained(name: str, around: Surroundings) -> NetworkSettings:
    settings = around.settings(name)
    if settings is None:
        raise ConfigError(f"the sizes of model {name!r} are not known here; plan the step that trains it, too")
    return settings


@lru_cache(maxsize=64)
def _examples(task: TaskName, files: tuple[str, ...], limit: int | None) -> Examples:
    return read_examples(task, files, limit=limit)


@lru_cache(maxsize=64)
def _evaluating(values: tuple[tuple[str, Any], ...], data: DataSize, decoding: DecodingConfig) -> Work:
    """Of one sequence; the models of a recipe have few shapes."""
    network = _network(dict(values)).train(False)
    return _gold(network, data) + _decoding(network, data, decoding)


@torch.no_grad()
def _decoding(network: LSTMSeq2Seq, data: DataSize, decoding: DecodingConfig) -> Work:
    """Of one sequence; a translation is counted to be as long as its reference, though it may go on to its limit."""
    source_1S, lengths_1 = torch.ones(1, data.source, dtype=torch.int64), torch.tensor([data.source])
    if network.config.eos_token_id is not None:
        network.config.eos_token_id = -1  # never written
        decoding = decoding.model_copy(update={"length_ratio": data.target / data.source, "length_extra": 0})
    return work_of(lambda: search(network, source_1S, lengths_1, decoding))


@torch.no_grad()
def _gold(network: LSTMSeq2Seq, data: DataSize) -> Work:
    source_1S, target_1T = (torch.ones(1, length, dtype=torch.int64) for length in (data.source, data.target))
    return work_of(lambda: network.scores(source_1S, torch.tensor([data.source]), target_1T))


def _network(values: Mapping[str, Any]) -> LSTMSeq2Seq:
    with seeded(0, "counting"):
        return LSTMSeq2Seq(LSTMSeq2SeqConfig.from_dict(dict(values)))


def _new_settings(verb: "TrainSeq2Seq", examples: Examples) -> dict[str, Any]:
    if verb.task == TRANSLATION:
        return verb.network.settings(verb.task, sources=verb.vocabulary_size, outputs=verb.vocabulary_size, eos=0)
    words, tags = ({each for sentence in side for each in sentence} for side in (examples.sources, examples.targets))
    return verb.network.settings(verb.task, sources=len(words), outputs=len(tags), eos=None)
