"""What planning counts with: quantities of work, what steps leave behind, and what a step is planned in.

`count_training` is the work of a run of the training engine, whatever it trains.

Relations  `verbs.verb.Verb.cost` of each verb counts; `energylm plan` turns quantities into seconds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import KNOWN_MODELS
from energylm.config.training import TrainingConfig
from energylm.data.corpus import Corpus
from energylm.data.negatives_manifest import read_negatives_manifest
from energylm.errors import ConfigError, DataError
from energylm.files import read_json
from energylm.models.compute import Network, Work, reading, resident_bytes, updating

FAMILIES = ("training", "drawing", "reading", "stepping", "searching")  # kinds of work with factors of their own
MEASURES = ("flops", "bytes", "operations")
PROCESS_BYTES = 5e8  # torch, transformers and Python themselves
SETTINGS_TYPES = ("energylm_lstm_seq2seq", "energylm_conditional_masked")  # networks of ours that read a source
ENCODER_TYPES = ("bert", "roberta", "modernbert", "electra", "distilbert")  # transformers' names
TOKENS_AT_ONCE = 4096  # of an energy that reads many texts: about what the engine puts into one pass


@dataclass(frozen=True)
class CorpusSize:
    tokens: Mapping[str, float]  # of each split
    vocabulary_size: int


@dataclass(frozen=True)
class GeneratedTexts:
    """Generated continuations."""

    contexts: float
    k: int
    length: int


@dataclass(frozen=True)
class NetworkSettings:
    """A network of another form than `Network` knows, by its settings: what will stand in its `config.json`."""

    values: Mapping[str, Any]
    task: str = ""  # what it was trained for, where it has one


Product = CorpusSize | Network | GeneratedTexts | NetworkSettings | None


@dataclass
class Counted:
    """What a step costs, in units that no machine knows yet."""

    quantities: dict[str, float] = field(default_factory=dict)
    memory_bytes: float = PROCESS_BYTES
    disk_bytes: float = 0.0
    product: Product = None
    notes: list[str] = field(default_factory=list)

    def add(self, family: str, work: Work) -> None:
        for name in MEASURES:
            self.count(f"{family}.{name}", getattr(work, name))

    def count(self, name: str, amount: float) -> None:
        self.quantities[name] = self.quantities.get(name, 0.0) + amount

    @property
    def flops(self) -> float:
        return sum(self.quantities.get(f"{family}.flops", 0.0) for family in FAMILIES)


@dataclass(frozen=True)
class Surroundings:
    """What a step is planned in: the products by their paths, and over how many processes work is spread."""

    products: Mapping[str, Product]
    facts: Mapping[str, Any]  # of `plan_factors.json`: sizes of data sets and networks that are not here
    world: int = 1  # processes
    text_gigabytes: float | None = None  # of each data set from the hub whose size is not known

    def network(
        self, name: str, *, vocabulary_size: int | None = None, overrides: Mapping[str, Any] | None = None
    ) -> Network:
        """Of a step, a preset, a folder or a known name."""
        product = self.products.get(name)
        if isinstance(product, Network):
            return product
        folder = KNOWN_MODELS[name].folder if name in KNOWN_MODELS else Path(name)
        if (folder / "config.json").is_file():
            return _network_of_folder(folder)
        if name in self.facts["networks"]:
            return Network(**self.facts["networks"][name])
        try:
            return Network.of_preset(name, overrides or {}, vocabulary_size=vocabulary_size or 0)
        except ConfigError:
            raise ConfigError(
                f"the sizes of model {name!r} are not known here; fetch it first, or give a folder that holds it"
            ) from None

    def settings(self, name: str) -> NetworkSettings | None:
        """Of a step or a folder that holds a network of one of `SETTINGS_TYPES`; None of any other."""
        product = self.products.get(name)
        if product is not None:
            return product if isinstance(product, NetworkSettings) else None
        folder = Path(name) / "model" if (Path(name) / "model").is_dir() else Path(name)
        values = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
        if values.get("model_type") not in SETTINGS_TYPES:
            return None
        plain = {key: value for key, value in values.items() if not isinstance(value, dict | list)}
        return NetworkSettings(plain, read_json(folder / "energylm.json").get("task", ""))

    def corpus(self, name: str) -> CorpusSize:
        product = self.products.get(name)
        if isinstance(product, CorpusSize):
            return product
        corpus = Corpus.open(name)
        tokens = {split: float(counts.tokens) for split, counts in corpus.manifest.splits.items()}
        return CorpusSize(tokens, corpus.vocabulary_size)

    def dataset_bytes(self, source: str) -> float:
        """The text of a data set of the hub."""
        if self.text_gigabytes is not None:
            return self.text_gigabytes * 1e9
        known: Mapping[str, float] = self.facts["dataset_bytes"]
        if source not in known:
            raise ConfigError(f"the size of {source} is not known here; say --text-gigabytes")
        return known[source]

    def texts(self, name: str) -> GeneratedTexts:
        product = self.products.get(name)
        if isinstance(product, GeneratedTexts):
            return product
        manifest = read_negatives_manifest(name)
        return GeneratedTexts(manifest.contexts, manifest.config.k, manifest.config.length)


def bytes_per_token(vocabulary_size: int) -> float:
    """Of a byte-level BPE on English text; measured here at 2,048 and 8,192 tokens."""
    return 2.9 + 0.33 * math.log2(max(vocabulary_size, 256) / 2048)


def passes_over(tokens: float) -> float:
    """Micro-batches in which so many tokens are read."""
    return max(1.0, tokens / TOKENS_AT_ONCE)


def text_tokens(text: str, network: Network) -> float:
    """About how many a text has for a network of this vocabulary."""
    return max(1.0, len(text.encode()) / bytes_per_token(network.vocabulary_size))


def count_texts(
    counted: "Counted", network: Network, lengths: Iterable[float], around: "Surroundings", *, predicts: bool = False
) -> None:
    """Sequences of so many tokens, each read once; where the network `predicts`, with the output layer at each."""
    work = Work()
    for length, rows in Counter(map(round, lengths)).items():
        tokens = rows * length
        predicted = tokens if predicts else 0
        work += reading(network, rows=rows, length=length, predicted=predicted, passes=tokens / TOKENS_AT_ONCE)
    counted.add("reading", work * (1 / around.world))


def count_training(
    network: Network,
    training: TrainingConfig,
    around: Surroundings,
    *,
    rows: float,
    length: float,
    predicted: float,
    validated: float,
) -> Counted:
    """An engine run on `rows` sequences for each member of the batch; `predicted` is the share of tokens at which the
    output layer runs, `validated` the sequences that are read at each validation."""
    counted = Counted()
    steps = counted_steps(training, counted)
    own = training.global_batch * rows / around.world
    micro = min(own, (training.micro_batch or training.global_batch) * rows)
    update = updating(
        network, rows=own, length=length, predicted=predicted * own * length, passes=max(1.0, own / micro)
    )
    counted.add("training", update * steps)
    if around.world > 1:
        moved = 2 * 4 * network.parameters * (around.world - 1) / around.world  # a ring adds gradients up
        counted.count("network.bytes", moved * steps)
    if every := training.validation.every_steps:
        times = math.ceil(steps / every) + training.validation.from_start
        looked_at = reading(
            network,
            rows=validated / around.world,
            length=length,
            predicted=predicted * validated * length / around.world,
            passes=max(1.0, validated / around.world / micro),
        )
        counted.add("reading", looked_at * times)
    counted.memory_bytes += resident_bytes(
        network, tokens=micro * length, length=length, predicted=predicted * micro * length, learns=True
    )
    counted.disk_bytes = 4 * network.parameters * (2 + 3 * training.checkpoint.keep)
    return counted


def counted_steps(training: TrainingConfig, counted: Counted) -> int:
    """Updates of a run; what is uncertain about them is noted."""
    if training.steps is not None:
        if training.validation.can_stop:
            counted.notes.append("may stop early; counted to the end")
        return training.steps
    patience = training.validation.patience_samples or 0
    counted.notes.append("ends when validation stops improving; counted for its patience twice")
    return max(1, round(2 * patience / training.global_batch))


def _network_of_folder(folder: Path) -> Network:
    """From a `config.json` of transformers."""
    values = read_json(folder / "config.json")
    try:
        layers, width = values["num_hidden_layers"], values["hidden_size"]
    except KeyError:
        if "n_layer" not in values:
            raise DataError(
                f"{folder / 'config.json'} names neither layers nor width; plan with another model"
            ) from None
        layers, width = values["n_layer"], values["n_embd"]
    return Network(
        kind="bidirectional" if values.get("model_type") in ENCODER_TYPES else "causal",
        layers=layers,
        width=width,
        heads=values.get("num_attention_heads") or values.get("n_head") or 1,
        inner_width=values.get("intermediate_size") or values.get("n_inner") or 4 * width,
        vocabulary_size=values["vocab_size"],
        gated="silu" in str(values.get("hidden_act", "")),
    )
