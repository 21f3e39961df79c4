"""Objectives as a task: both routes agree, sums add up over any cut of a batch, and no gradient goes astray."""

from pathlib import Path

import pytest
import torch

from energylm.config.models import (
    LIKELIHOOD,
    MASKED,
    PROJECTION,
    PROJECTION_AND_PSEUDO,
    PSEUDO_LIKELIHOOD,
)
from energylm.data.small_languages import Sequences
from energylm.energies.masked_lm import MaskedLMEnergy
from energylm.models import context_energies
from energylm.models.bilstm_context import BiLSTMContext, BiLSTMContextConfig
from energylm.testing import enumerate_sequences
from energylm.training.exact_study_task import ExactStudyTask
from energylm.training.task import Share

V = 3
DATA = Sequences(torch.tensor([[0, 1, 2], [2, 2, 0], [1, 0, 0], [1, 1, 1], [2, 0, 1]]), torch.tensor([3, 2, 1, 3, 3]))


def network(seed: int) -> BiLSTMContext:
    made = BiLSTMContext(BiLSTMContextConfig(vocab_size=V, hidden_size=4, head_size=6)).double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():  # large enough for conditionals that differ
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=draw))
    return made


def task(objective: str, model: BiLSTMContext | None = None, **options) -> ExactStudyTask:
    teacher = network(1) if "projection" in objective else None
    sizes = {"seed": 0, "global_batch": 4, "save_model": lambda model, folder: None}
    return ExactStudyTask(model or network(0), DATA, DATA, objective=objective, teacher=teacher, **sizes | options)


def value(of: ExactStudyTask) -> float:
    with torch.no_grad():
        total, count = of.validate(of.model, Share())["loss"]
    return total / count


def brute(objective: str) -> float:
    """The mean loss of DATA from energies of single sequences, each by itself."""
    model, teacher, total = network(0), network(1), 0.0
    with torch.no_grad():
        for row, length in zip(DATA.tokens_NT, DATA.lengths_N.tolist(), strict=True):
            y_1T = row[None, :length]
            everything_ST = enumerate_sequences(V, length)
            energies_S = MaskedLMEnergy(model, kind="raw").energies(everything_ST, torch.full((V**length,), length))
            log_joint_S = (-energies_S).log_softmax(0)
            if objective == LIKELIHOOD:
                total -= float(log_joint_S[(everything_ST == y_1T).all(1)])
                continue
            for t in range(length):
                others = [i for i in range(length) if i != t]
                line_V = log_joint_S[(everything_ST[:, others] == y_1T[:, others]).all(1)].log_softmax(0)
                free_V = model.cloze_logits(y_1T)[0, t].log_softmax(0)
                teacher_V = teacher.cloze_logits(y_1T)[0, t].log_softmax(0)
                if objective == MASKED:
                    total -= float(free_V[y_1T[0, t]])
                if objective in (PSEUDO_LIKELIHOOD, PROJECTION_AND_PSEUDO):
                    total -= float(line_V[y_1T[0, t]])
                if objective in (PROJECTION, PROJECTION_AND_PSEUDO):
                    total += float((teacher_V.exp() * (teacher_V - line_V)).sum())
    return total / len(DATA)


@pytest.mark.parametrize("objective", [LIKELIHOOD, PSEUDO_LIKELIHOOD, MASKED, PROJECTION, PROJECTION_AND_PSEUDO])
@pytest.mark.parametrize("enumerated", [20_000, 0])
def test_losses_are_those_of_single_sequences(objective: str, enumerated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_energies, "ENUMERATED", enumerated)
    if objective == LIKELIHOOD and not enumerated:
        with pytest.raises(ValueError, match="too many to sum over"):
            value(task(objective))
        return
    assert value(task(objective)) == pytest.approx(brute(objective), abs=1e-10)
    other = PSEUDO_LIKELIHOOD if objective == MASKED else MASKED
    assert abs(brute(objective) - brute(other)) > 1e-3, "the five objectives are different numbers"


@pytest.mark.parametrize("objective", [LIKELIHOOD, PROJECTION_AND_PSEUDO])
def test_sums_do_not_depend_on_the_cut(objective: str) -> None:
    one = task(objective)
    whole = one.loss(one.model, one.batch(1, range(4))).losses
    parts = [one.loss(one.model, one.batch(1, rows)).losses for rows in (range(1), range(1, 4))]
    assert set(whole) == set(one.loss_weights)
    for term, total in whole.items():
        torch.testing.assert_close(total, parts[0][term] + parts[1][term])
    assert one.counts(one.batch(1, range(4))) == dict.fromkeys(whole, 4.0)


def test_the_teacher_is_not_trained() -> None:
    one = task(PROJECTION)
    one.loss(one.model, one.batch(1, range(4))).losses[PROJECTION].backward()
    assert all(parameter.grad is None for parameter in one.teacher.parameters())
    assert any(parameter.grad is not None for parameter in one.model.parameters())


def test_projection_of_itself_is_not_zero() -> None:
    """A masked model's own weights read as an energy have other conditionals than the masked model: the gap that
    projection closes."""
    same = ExactStudyTask(
        network(1), DATA, DATA, objective=PROJECTION, teacher=network(1), seed=0, global_batch=4, save_model=_nothing
    )
    assert value(same) > 0.01


def test_a_teacher_comes_with_a_projection_and_only_then() -> None:
    with pytest.raises(ValueError, match="do not go together"):
        ExactStudyTask(
            network(0), DATA, DATA, objective=MASKED, teacher=network(1), seed=0, global_batch=4, save_model=_nothing
        )


def _nothing(model: torch.nn.Module, folder: Path) -> None:
    pass
