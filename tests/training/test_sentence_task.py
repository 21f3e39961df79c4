"""Sentence and span tasks on the engine: losses by hand, a separable task is learnt, killed runs keep their bits."""

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.testing import assert_close

from energylm.bundles.task_models import SentenceModel, SpanModel, TaskEncoder, sentence_logits
from energylm.config.cloze import SpanConfig
from energylm.data.squad import NOWHERE, Question
from energylm.randomness import seeded
from energylm.training.engine import train
from energylm.training.finetune_task import LabelledTexts, SentenceTask, SpanTask, judged
from energylm.verbs.cloze.finetune import Finetune

WHO = ("the clerk", "a sailor", "our neighbour", "the old miller")
DOES = ("counts", "mends", "remembers", "paints")
THINGS = (("seven lamps", "a bridge"), ("the boats", "an old map"))  # of class 0 and 1


def sentences(count, seed=0):
    chooser = random.Random(seed)
    labels = [chooser.randrange(2) for _ in range(count)]
    texts = [f"{chooser.choice(WHO)} {chooser.choice(DOES)} {chooser.choice(THINGS[label])}." for label in labels]
    return texts, labels


@pytest.fixture
def make_model(bert_folder):
    def make(seed=0, **options):
        with seeded(seed, "initialisation"):
            return SentenceModel.from_encoder(
                TaskEncoder.from_pretrained(bert_folder),
                task="sst2",
                **{"max_tokens": 32, "pooling": None, "style": "written", "dropout": 0.1} | options,
            )

    return make


def labelled(model, texts, labels):
    return LabelledTexts(model.encode(texts), torch.tensor(labels))


def sentence_task(model, *, save=lambda network, folder: None, task_class=SentenceTask, valid=None):
    data = labelled(model, *sentences(96))
    return task_class(model.network, data, valid, seed=0, global_batch=16, save_model=save)


def settings(steps=40, **training):
    values = {"threads": 1, "optimizer": {"learning_rate": 5e-3}, "checkpoint": {"every_steps": 8}} | training
    config = Finetune(task="sst2", data="unused", training={"steps": steps, "global_batch": 16, **values})
    return config.training_on(96, seed=0)


def test_losses_by_hand():
    logits_BC = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels_B = torch.tensor([0, 2, 1, 1, 0])
    loss, right, count = judged(logits_BC, labels_B)
    assert_close(loss, cross_entropy(logits_BC, labels_B) * 5)
    assert (right, count) == ((logits_BC.argmax(-1) == labels_B).sum(), 5)
    scores_B = torch.rand(5)
    assert_close(judged(logits_BC[:, :1], scores_B)[0], ((logits_BC[:, 0] - scores_B) ** 2).sum())


def test_neither_the_cut_into_micro_batches_nor_padding_changes_the_loss(make_model):
    model = make_model(dropout=0.0)
    model.network.eval()
    task = sentence_task(model)
    whole = task.loss(model.network, task.batch(3, range(16))).losses["loss"]
    parts = [
        task.loss(model.network, task.batch(3, range(start, start + 4))).losses["loss"] for start in range(0, 16, 4)
    ]
    assert_close(whole, sum(parts), atol=1e-4, rtol=1e-5)
    texts = model.encode(sentences(20, seed=5)[0])
    with torch.no_grad():
        alone = torch.cat([model.network(torch.from_numpy(ids)[None]).logits for ids in texts.ids])
    assert_close(sentence_logits(model.network, texts), alone, atol=1e-5, rtol=1e-4)


def test_a_separable_task_is_learnt_and_validated(make_model, tmp_path):
    model = make_model()
    valid = labelled(model, *sentences(40, seed=1))
    result = train(
        sentence_task(model, valid=valid), settings(steps=60, validation={"every_steps": 20}), folder=tmp_path
    )
    assert result.best_validation["accuracy"] == 1.0
    texts, labels = sentences(40, seed=2)
    told = [one.label for one in model.predict(texts)]
    assert np.mean([("negative", "positive")[label] == one for label, one in zip(labels, told, strict=True)]) == 1.0


class Interrupted(SentenceTask):
    def batch(self, step, rows):
        if step == 13:
            raise KeyboardInterrupt
        return super().batch(step, rows)


@pytest.mark.parametrize("mistake", [None, "another head"])
def test_a_killed_run_ends_with_the_bits_of_one_left_alone(make_model, tmp_path, mistake):
    """Dropout is on; layers learn at their own rates. A resumed run takes nothing from its fresh head."""

    def final(folder, task_class=SentenceTask, seed=0):
        model = make_model(seed)
        task = sentence_task(model, save=lambda network, place: model.save_pretrained(place), task_class=task_class)
        train(task, settings(steps=20), folder=folder)
        return load_file(folder / "model" / "model.safetensors")

    alone = final(tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        final(tmp_path / "killed", Interrupted)
    resumed = final(tmp_path / "killed", seed=7)  # the head comes from the checkpoint, not from this seed
    if mistake is not None:
        resumed = final(tmp_path / "other", seed=7)
    equal = all(torch.equal(alone[name], resumed[name]) for name in alone)
    assert equal == (mistake is None)


QUESTIONS = [
    Question("1", "Who paints?", "Her sister paints a bridge. The clerk counts.", (("Her sister", 0),)),
    Question("2", "Who counts?", "Her sister paints a bridge. The clerk counts.", (("The clerk", 28),)),
    Question("3", "Who mends?", "Her sister paints a bridge. The clerk counts.", ()),
]


@pytest.fixture
def span_model(bert_folder):
    with seeded(0, "initialisation"):
        return SpanModel.from_encoder(
            TaskEncoder.from_pretrained(bert_folder),
            task="squad2",
            max_tokens=64,
            config=SpanConfig(hidden_width=16),
            dropout=0.0,
        )


def span_task(model, weight, **options):
    windows = model.encode(QUESTIONS).windows
    return SpanTask(
        model.network, windows, answerable_weight=weight, seed=0, global_batch=3, save_model=lambda *_: None, **options
    )


def test_span_losses_by_hand(span_model):
    """Starts and ends of the two answered windows, the end given the gold start; answerability of all three."""
    span_model.network.eval()
    task = span_task(span_model, 0.5, valid=span_model.encode(QUESTIONS).windows)
    batch = task.batch(1, range(3))
    losses = task.loss(span_model.network, batch).losses
    assert task.counts(batch) == {"start": 2, "end": 2, "answerable": 3}
    reading = span_model.network.read(**{key: value for key, value in batch.items() if not key.endswith("_B")})
    rows = [row for row in range(3) if batch["start_B"][row] != NOWHERE]
    ends = [span_model.network.end_log_probs(reading, batch["start_B"].clamp(min=0)[:, None])[row, 0] for row in rows]
    assert_close(losses["start"], -sum(reading.start_log_prob_BT[row, batch["start_B"][row]] for row in rows))
    assert_close(losses["end"], -sum(end[batch["end_B"][row]] for end, row in zip(ends, rows, strict=True)))
    no_answer = (batch["start_B"] == NOWHERE).float()
    assert_close(losses["answerable"], binary_cross_entropy_with_logits(reading.no_answer_log_odds_B, no_answer) * 3)
    total = sum(task.loss_weights[name] * losses[name] for name in losses)
    total.backward()
    assert all(p.grad.isfinite().all() for p in span_model.network.parameters() if p.grad is not None)
    from energylm.training.task import Share

    with torch.no_grad():
        value, windows = task.validate(span_model.network, Share())["loss"]
    assert (value, windows) == (pytest.approx(total.item(), rel=1e-4), pytest.approx(3))


def test_answers_are_learnt_by_heart(span_model, tmp_path):
    train(span_task(span_model, 0.5), settings(steps=800), folder=tmp_path)
    span_model.network.eval()
    windows = span_model.encode(QUESTIONS).windows
    assert [one.text for one in span_model.answers(QUESTIONS, windows)] == ["Her sister", "The clerk", ""]


def test_without_unanswerable_questions_there_is_no_third_term(span_model):
    task = span_task(span_model, 0.0)
    assert set(task.loss_weights) == {"start", "end"} and not span_model.network.answerable.weight.requires_grad
