"""Electric's and ELECTRA's training: batches as pure functions, the losses by another route, learning, resuming."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.testing import assert_close

from energylm.config.models import TransformerShape
from energylm.config.pretrain import LocalTransformerShape
from energylm.energies.electric import TokenEnergy
from energylm.models.cloze_presets import (
    build_detector,
    build_encoder,
    build_generator,
    build_two_tower,
    replaced_logits,
    share_token_embeddings,
)
from energylm.objectives.noised_tokens import independent_positions, unique_positions
from energylm.randomness import seeded
from energylm.training.contrast_task import CONTRAST_LOSS, NOISE_LOSS, ContrastTask, ElectraContrast, ElectricContrast
from energylm.training.engine import train
from energylm.training.task import Share

MASK = 22  # the toy sequences count modulo 23; 22 and 0 stand for special tokens here
MAIN = TransformerShape(layers=1, width=32, heads=4, dropout=0.0)
NOISE = TransformerShape(layers=1, width=8, heads=1, dropout=0.0)
SIZES = {"vocabulary_size": 23, "max_length": 13, "pad_token_id": None}
LOCAL_MAIN = LocalTransformerShape(layers=1, width=32, heads=4, dropout=0.0)
LOCAL_NOISE = LocalTransformerShape(layers=1, width=8, heads=1, dropout=0.0)
ELECTRIC, NAIVE, ELECTRA, ELECTRA_TT = "electric", "electric-naive", "electra", "electra-tt"
LOCAL = "electra-local"  # a generator with a table of its own
CONTRASTS = {
    ELECTRIC: ElectricContrast(),
    NAIVE: ElectricContrast("naive"),
    ELECTRA: ElectraContrast(mask_token_id=MASK),
    ELECTRA_TT: ElectraContrast(mask_token_id=None),
    LOCAL: ElectraContrast(mask_token_id=MASK),
}
FAMILIES = list(CONTRASTS)


def build(family):
    with seeded(0, "initialisation"):
        is_electric = family in (ELECTRIC, NAIVE)
        encoder = (build_encoder if is_electric else build_detector)(LOCAL_MAIN if family == LOCAL else MAIN, **SIZES)
        if family in (ELECTRA, LOCAL):
            noise = build_generator(LOCAL_NOISE if family == LOCAL else NOISE, embedding_width=32, **SIZES)
        else:
            noise = build_two_tower(NOISE, embedding_width=32, **SIZES)
    share_token_embeddings(encoder, noise)
    return nn.ModuleDict({"noise": noise, "main": TokenEnergy(encoder) if is_electric else encoder})


@pytest.fixture
def make(toy):
    def make_task(family, *, seed=0, task_class=ContrastTask, train_windows=None, **options):
        ordinary = torch.ones(23, dtype=torch.bool)
        ordinary[[0, MASK]] = False
        values = {
            "contrast": CONTRASTS[family],
            "noise_rate": 0.3,
            "contrast_weight": 5.0,
            "ordinary_V": ordinary,
            "seed": seed,
            "global_batch": toy.BATCH,
            "save_model": toy.save_model,
            "valid_batch": 4,
        }
        windows = toy.ToyWindows() if train_windows is None else train_windows
        return task_class(build(family), windows, toy.ToyWindows(size=11, seed=1), **values | options)

    return make_task


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_and_sums_are_the_same_however_they_are_cut(make, family):
    task = make(family)
    whole = task.batch(13, range(7))
    task.batch(2, range(7))
    parts = [task.batch(13, rows) for rows in (range(0, 1), range(1, 4), range(4, 7))]
    for name in whole:
        assert torch.equal(torch.cat([part[name] for part in parts]), whole[name])
    assert not (whole["maskable_BT"] & torch.isin(whole["tokens_BT"], torch.tensor([0, MASK]))).any()
    with torch.no_grad():
        sums = task.loss(task.model, whole).losses
        pieces = [task.loss(task.model, part).losses for part in parts]
    for name in (NOISE_LOSS, CONTRAST_LOSS):
        assert float(sum(piece[name] for piece in pieces)) == pytest.approx(float(sums[name]), rel=1e-5)
        assert task.counts(whole)[name] == sum(task.counts(part)[name] for part in parts)
    other = make(family, seed=1).batch(13, range(7))
    assert not torch.equal(other["position_uniforms_BT"], whole["position_uniforms_BT"])


def with_lucky_noise(task):
    """A batch in which some noise token equals the original; its sums, and what the main network read."""
    for step in range(1, 100):
        batch, read = task.batch(step, range(7)), []
        hook = task.model["main"].register_forward_pre_hook(lambda _, inputs, read=read: read.append(inputs[0]))
        sums = task.loss(task.model, batch)
        hook.remove()
        chosen_BT = unique_positions(batch["position_uniforms_BT"], batch["maskable_BT"], batch["noise_count_B"])
        if bool((chosen_BT & (read[0] == batch["tokens_BT"])).any()):
            return batch, sums, read[0], chosen_BT
    raise AssertionError("no noise token ever equalled the original")


def test_electrics_loss_by_another_route(make):
    """From the noised tokens: log q of each on the ORIGINAL text, log(k/(n − k)) of the row, −log of a fraction."""
    task = make(ELECTRIC)
    batch, sums, noised, is_noise = with_lucky_noise(task)
    tokens, maskable = batch["tokens_BT"], batch["maskable_BT"]
    assert torch.equal(noised[~is_noise], tokens[~is_noise]) and (noised != tokens).any()
    with torch.no_grad():
        energy = task.model["main"](noised).double()

        def loss(context, noise=is_noise):
            log_q = task.model["noise"](context).logits.double().log_softmax(-1)
            total = 0.0
            for b in range(7):
                n = int(maskable[b].sum())
                k = math.ceil(0.3 * n - 1e-9)
                assert int(is_noise[b].sum()) == k
                for t in maskable[b].nonzero()[:, 0].tolist():
                    p, q = math.exp(-energy[b, t]), math.exp(log_q[b, t, noised[b, t]])
                    share = k * q / ((n - k) * p + k * q)
                    total -= math.log(share if noise[b, t] else 1 - share)
            return total

        assert float(sums.losses[CONTRAST_LOSS]) == pytest.approx(loss(tokens), rel=1e-5)
        log_q = task.model["noise"](tokens).logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        assert_close(sums.losses[NOISE_LOSS].detach(), -log_q[maskable].sum(), rtol=1e-5, atol=0)
        # Teeth: q on the noised text; lucky noise called real, as ELECTRA does.
        assert abs(loss(noised) - loss(tokens)) > 0.1
        assert abs(loss(tokens, noise=is_noise & (noised != tokens)) - loss(tokens)) > 0.1
    assert task.counts(batch) == {NOISE_LOSS: int(maskable.sum()), CONTRAST_LOSS: int(maskable.sum())}


def test_the_naive_algorithm_replaces_one_token_a_pass(make):
    """n real tokens in one pass; each noise token alone in the true text; the loss from what was read, by hand."""
    task = make(NAIVE)
    batch, read = task.batch(1, range(7)), []
    hook = task.model["main"].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    sums = task.loss(task.model, batch)
    hook.remove()
    replaced, real = read
    tokens, maskable, count = batch["tokens_BT"], batch["maskable_BT"], batch["noise_count_B"]
    assert torch.equal(real, tokens)
    differs = replaced.view(7, -1, 13) != tokens[:, None]
    assert int(differs.sum(-1).max()) == 1 and replaced.shape[0] == 7 * int(count.max())
    with torch.no_grad():
        log_q = task.model["noise"](tokens).logits.double().log_softmax(-1)
        energy = task.model["main"](tokens).double()
        ratio = (count / maskable.sum(1)).log()[:, None]
        own = energy + log_q.gather(2, tokens[..., None])[..., 0] + ratio
        total = float(softplus(own)[maskable].sum())
        positions = independent_positions(batch["position_uniforms_BT"][:, : int(count.max())], maskable)
        noise_energy = task.model["main"](replaced).double().view(7, -1, 13)
        for b, j in itertools.product(range(7), range(int(count.max()))):
            if j >= count[b]:
                continue
            t, n, k = int(positions[b, j]), int(maskable[b].sum()), int(count[b])
            p, q = math.exp(-noise_energy[b, j, t]), math.exp(log_q[b, t, replaced.view(7, -1, 13)[b, j, t]])
            total -= math.log(k * q / (n * p + k * q))
    assert float(sums.losses[CONTRAST_LOSS].detach()) == pytest.approx(total, rel=1e-5)
    right, counted = sums.metrics["real_accuracy"]
    assert (int(right), int(counted)) == (int((maskable & (own <= 0)).sum()), int(maskable.sum()))
    assert int(sums.metrics["noise_accuracy"][1]) == int(count.sum())


@pytest.mark.parametrize("family", [ELECTRA, ELECTRA_TT, LOCAL])
def test_electras_loss_by_another_route(make, family):
    """Torch's binary cross-entropy on the same tokens; the generator's loss on masked tokens, or on all of them."""
    task = make(family)
    batch, sums, noised, chosen = with_lucky_noise(task)
    tokens, maskable = batch["tokens_BT"], batch["maskable_BT"]
    with torch.no_grad():
        logits = replaced_logits(task.model["main"], noised)
        labels = (noised != tokens).float()
        each = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        assert_close(sums.losses[CONTRAST_LOSS].detach(), each[maskable].sum(), rtol=1e-5, atol=0)
        as_noise = nn.functional.binary_cross_entropy_with_logits(logits, chosen.float(), reduction="none")
        least = 0.1 if family == ELECTRA else 0.01  # the first logits of the others are nearer to zero
        assert abs(float(as_noise[maskable].sum() - each[maskable].sum())) > least  # teeth: lucky noise called noise
        if family in (ELECTRA, LOCAL):
            labels = tokens.masked_fill(~chosen, -100)
            theirs = task.model["noise"](tokens.masked_fill(chosen, MASK), labels=labels).loss * chosen.sum()
            count = int(chosen.sum())
        else:
            log_q = task.model["noise"](tokens).logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
            theirs, count = -log_q[maskable].sum(), int(maskable.sum())
    assert_close(sums.losses[NOISE_LOSS].detach(), theirs, rtol=1e-5, atol=0)
    assert task.counts(batch) == {NOISE_LOSS: count, CONTRAST_LOSS: int(maskable.sum())}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_noise_model_learns_from_its_own_loss_only(make, family):
    """Gradients of the contrast reach the main network and the shared embeddings, and nothing else of the noise."""
    task = make(family)
    sums = task.loss(task.model, task.batch(1, range(7)))
    sums.losses[CONTRAST_LOSS].backward()
    shared = task.model["noise"].get_input_embeddings().weight
    noise = {name: p for name, p in task.model["noise"].named_parameters() if p is not shared}
    assert len(noise) > (9 if family == LOCAL else 10) and all(p.grad is None for p in noise.values())
    assert all(p.grad is not None for p in task.model["main"].parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_without_text_adds_nothing(make, family):
    task = make(family, ordinary_V=torch.zeros(23, dtype=torch.bool))
    batch = task.batch(1, range(7))
    sums = task.loss(task.model, batch)
    (sums.losses[NOISE_LOSS] + sums.losses[CONTRAST_LOSS]).backward()
    assert [float(sums.losses[name].detach()) for name in (NOISE_LOSS, CONTRAST_LOSS)] == [0, 0]
    assert task.counts(batch) == {NOISE_LOSS: 0, CONTRAST_LOSS: 0}
    assert all(p.grad is not None and not p.grad.any() for p in task.model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_validation_draws_alike_each_time_and_shares_add_up(make, family):
    task = make(family)
    with torch.no_grad():
        whole, again = task.validate(task.model, Share()), task.validate(task.model, Share())
        parts = [task.validate(task.model, Share(rank, 3)) for rank in range(3)]
        other_cut = make(family, valid_batch=3).validate(task.model, Share())
    assert whole == again and set(whole) == {NOISE_LOSS, CONTRAST_LOSS, "real_accuracy", "noise_accuracy"}
    for name in whole:
        for place in range(2):
            assert sum(part[name][place] for part in parts) == pytest.approx(whole[name][place], rel=1e-4)
        assert other_cut[name] == pytest.approx(whole[name], rel=1e-4)


@torch.no_grad()
def text_against_random_tokens(task):
    """How much higher the main network's number (energy, or logit of "replaced") is on random tokens than on text."""
    tokens = torch.from_numpy(task.valid_windows.gather(np.arange(11)))
    random = torch.randint(1, MASK, tokens.shape, generator=torch.Generator().manual_seed(0))
    main = task.model["main"].eval()
    found = [main(x) if isinstance(main, TokenEnergy) else replaced_logits(main, x) for x in (tokens, random)]
    return float((found[1] - found[0]).mean())


@pytest.mark.parametrize("family", [ELECTRIC, ELECTRA, ELECTRA_TT])
def test_it_learns(make, toy, tmp_path, family):
    """The noise model falls from log 23 = 3.1 nats towards what neighbours leave open; the main network comes to
    dislike random tokens. The contrast's own loss need not fall: its noise gets better."""
    task = make(family, global_batch=32, train_windows=toy.ToyWindows(size=400), contrast_weight=50.0)
    before = text_against_random_tokens(task)
    config = toy.config(
        steps=80,
        global_batch=32,
        optimizer={"learning_rate": 5e-3},
        schedule={"kind": "constant"},
        validation={"every_steps": 80, "metric": NOISE_LOSS},
    )
    result = train(task, config, folder=tmp_path)
    assert abs(before) < 0.1 and text_against_random_tokens(task) > 0.5
    assert result.validation[NOISE_LOSS] < 2.5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_ends_with_the_same_bits(make, toy, tmp_path, family):
    config = toy.config(steps=24, validation={"every_steps": 12, "metric": NOISE_LOSS}, checkpoint={"every_steps": 10})
    train(make(family), config, folder=tmp_path / "whole")

    class Interrupted(ContrastTask):
        def batch(self, step, rows):
            if step == 17:
                raise KeyboardInterrupt
            return super().batch(step, rows)

    with pytest.raises(KeyboardInterrupt):
        train(make(family, task_class=Interrupted), config, folder=tmp_path / "cut")
    train(make(family), config, folder=tmp_path / "cut")
    weights = [(tmp_path / name / "model" / "final.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
