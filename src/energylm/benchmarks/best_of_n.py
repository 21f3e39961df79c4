"""Choosing 1 of 64 by a classifier against the plain way.

The plain way is what one would write first: `generate(num_return_sequences=64)`, then `pipeline("text-classification")`
over the 64 completions at its best batch size, then one draw by weight. Ours is `ResidualModel` with
`Energy.from_classifier`. Both continue 120 tokens by 40 of the same language model, SmolLM2-135M where it is here
(`energylm models get smollm2-135m`), else a network of its shape with random weights; the classifier has MiniLM's shape
and random weights, which change no time.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

from energylm.benchmarks.harness import Bar, BenchmarkResult, Options, interleaved_seconds, seconds_of
from energylm.benchmarks.inputs import nbest_texts, seeded, smollm2, tokenizer_for
from energylm.benchmarks.shared_prefix import CONTEXT, NEW, TOP_K, generate
from energylm.bundles.known_models import KNOWN_MODELS
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.text_energy import Energy
from energylm.config.vocabulary import ENCODER
from energylm.data.tokenizer import load_tokenizer
from energylm.progress import say

N, BATCHES = 64, (1, 8, 32, 64)
POSITIONS = 512  # of a classifier of MiniLM's shape
LABEL = "LABEL_1"  # transformers' name for the second of two
PROMPT = "The harbour master counted the boats twice, wrote the number down, and asked the crew what they had seen. "


@dataclass(frozen=True)
class Contest:
    """The models of both contenders, and the tokens that they continue."""

    lm: LanguageModel
    classifier: BertForSequenceClassification
    reader: PreTrainedTokenizerFast  # of the classifier
    classify: Any  # transformers' pipeline over both
    context: list[int]
    n: int
    origin: str

    @classmethod
    def of(cls, *, quick: bool) -> "Contest":
        """With `quick`, networks of a few thousand weights."""
        small = tokenizer_for([text for texts in nbest_texts(8).texts for text in texts])
        lm, origin = smollm2(small, quick=quick)
        known = KNOWN_MODELS[ENCODER].folder
        reader = load_tokenizer(known) if known.is_dir() and not quick else small
        if reader.pad_token is None:
            reader.pad_token = reader.eos_token  # which the pipeline asks for
        context = lm.tokenizer.encode(PROMPT * CONTEXT, add_special_tokens=False)[:CONTEXT]
        classifier, n = _classifier(reader, quick=quick), 8 if quick else N
        classify: Any = pipeline("text-classification", model=classifier, tokenizer=reader, top_k=None)
        return cls(lm, classifier, reader, classify, context, n, origin)

    def ours(self) -> str:
        energy = Energy.from_classifier(self.classifier, tokenizer=self.reader, label=LABEL)
        joint = ResidualModel(self.lm, energy)
        return joint.sample(self.context, n=self.n, max_new_tokens=NEW, top_k=TOP_K, stop_at_eos=False).text

    def plain(self, batch_size: int) -> str:
        texts = self._texts()
        weights = torch.tensor(self._label_probabilities(texts, batch_size))
        return texts[int(torch.multinomial(weights, 1))]

    def best_batch(self) -> int:
        """Of the pipeline, by one call each."""
        texts = self._texts()
        say("finding the best batch of the pipeline")
        self._label_probabilities(texts[:2], 1)  # warm up
        batches = [size for size in BATCHES if size <= self.n]
        return min(batches, key=lambda size: seconds_of(partial(self._label_probabilities, texts, size)))

    def _texts(self) -> list[str]:
        network: Any = self.lm.model.network  # transformers types `generate` for a protocol that its own do not meet
        sequences = generate(network, self.context, self.n, TOP_K)
        written: list[str] = self.lm.tokenizer.batch_decode(sequences[:, len(self.context) :], skip_special_tokens=True)
        return written

    def _label_probabilities(self, texts: list[str], batch_size: int) -> list[float]:
        rows = self.classify(texts, batch_size=batch_size, truncation=True, max_length=POSITIONS)
        return [next(label["score"] for label in row if label["label"] == LABEL) for row in rows]


def run(options: Options) -> BenchmarkResult:
    contest = Contest.of(quick=options.quick)
    batch_size = contest.best_batch()
    seconds = interleaved_seconds({"ours": contest.ours, "plain": partial(contest.plain, batch_size)}, options)
    return BenchmarkResult(
        name="best-of-n",
        bars=[Bar.on(f"choosing 1 of {contest.n}: times the plain way", seconds["plain"] / seconds["ours"], 3.0)],
        details={f"seconds a choice, {name}": value for name, value in seconds.items()}
        | {f"tokens/s, {name}": contest.n * NEW / value for name, value in seconds.items()}
        | {"language model": contest.origin, "best batch of the pipeline": batch_size},
    )


def _classifier(reader: PreTrainedTokenizerFast, *, quick: bool) -> BertForSequenceClassification:
    """Of all-MiniLM-L6's shape, with two labels, as many as transformers gives by itself."""
    shape: dict[str, Any] = {"hidden_size": 384, "intermediate_size": 1536}
    shape |= {"num_hidden_layers": 6, "num_attention_heads": 12}
    if quick:
        shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(reader), max_position_embeddings=POSITIONS, **shape)
    network: BertForSequenceClassification = seeded(lambda: BertForSequenceClassification(config)).eval()
    return network
