"""Every hot path on a device that is not the CPU: no operation meets tensors of both, and the numbers stay the same.

The device is pretended (`tests/pretended_device.py`), so that faults show on machines without one.
"""

import copy
import importlib.util
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from energylm import EnergyModel, LanguageModel, ResidualModel, Scorer
from energylm.bundles.energy_model import EnergyGradients
from energylm.bundles.network_energies import ClassifierEnergy, SimilarityEnergy
from energylm.data.tokenizer import train_tokenizer
from energylm.models.causal import CausalLanguageModel
from energylm.models.presets import build_network


def beside(path):
    """A module of the tests that is no test itself."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parent / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pretended, families = beside("pretended_device.py"), beside("training/families.py")

TEXTS = ["the clerk counts the boats", "a sailor mends a bridge"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 20, vocabulary_size=290)


def build(network_class, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network_class(BertConfig(max_position_embeddings=64, **SIZES, **options)).eval()


@pytest.fixture(scope="module")
def language_model(tokenizer):
    def make(preset="tiny"):
        sizes = {"layers": 1, "width": 16} | ({"heads": 2} if preset == "tiny" else {"embedding_width": 8})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = build_network(
                preset, vocabulary_size=len(tokenizer), max_length=64, eos_token_id=0, overrides=sizes
            ).eval()
        return LanguageModel(CausalLanguageModel(network, start_token_id=0, eos_token_id=0), tokenizer, name=preset)

    return make


def joint_of(lm, *, encoder="unit", reads="tokens"):
    body = lm.model.network if encoder == "unit" else build(BertModel, vocab_size=len(lm.tokenizer))
    return ResidualModel(lm, EnergyModel(copy.deepcopy(body), lm.tokenizer, reads=reads))


def networks(value, *, depth=4):
    """The networks that an object of ours holds."""
    if isinstance(value, torch.nn.Module):
        return [value]
    if depth == 0 or not hasattr(value, "__dict__") or type(value).__module__.partition(".")[0] != "energylm":
        return []
    return [network for inner in vars(value).values() for network in networks(inner, depth=depth - 1)]


def same_on_device(make, use):
    """What `use` gives on the CPU and on the device, with networks of equal weights."""
    expected, moved = use(make()), make()
    for network in {id(network): network for network in networks(moved)}.values():
        pretended.put_on_device(network)
    if hasattr(moved, "_target_JD"):  # as its own `to` does
        moved._target_JD = pretended.Pretended(moved._target_JD)
    with pretended.pretended_device():
        assert use(moved) == expected


def rounded(values):
    return [round(float(value), 4) for value in values]


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.8, "temperature": 1.3}])
def test_continuations(language_model, preset, options):
    """By the shared-prefix decoder and by the convolutional network's own."""

    def use(lm):
        drawn = lm.sample(["the clerk", "a"], n=4, max_new_tokens=5, seed=1, **options).continuations
        return drawn.tokens.tolist(), rounded(drawn.log_prob.flatten()), rounded(drawn.proposal_log_prob.flatten())

    same_on_device(lambda: language_model(preset), use)


def test_continuations_without_special_tokens(language_model):
    same_on_device(
        lambda: language_model().without_special_tokens(),
        lambda lm: lm.sample("the", n=4, max_new_tokens=5, stop_at_eos=False).texts,
    )


@pytest.mark.parametrize("preset", ["tiny", "conv-tiny"])
def test_scores_and_perplexity(language_model, preset):
    same_on_device(
        lambda: language_model(preset),
        lambda lm: (round(lm.perplexity(TEXTS).value, 3), rounded(lm.score(TEXTS, eos=True)[0].token_log_probs)),
    )


@pytest.mark.parametrize(("encoder", "reads"), [("unit", "tokens"), ("bit", "tokens"), ("bit", "text")])
def test_joint_models(language_model, encoder, reads):
    def use(joint):
        sample = joint.sample("the clerk", n=6, max_new_tokens=4, top_k=9, seed=2)
        options = {"prefix_tokens": 2, "n": 5}
        texts = [joint.lm.encode(text)[:5] for text in TEXTS]
        return (
            sample.texts,
            rounded(sample.energies),
            rounded([joint.perplexity(TEXTS, **options).lower, joint.perplexity(TEXTS, **options).certified.value]),
            round(joint.stepwise(texts, **options).last_exact.value, 3),
            joint.next_token_table("the", candidates=3, n=4, max_new_tokens=3).joint[0].token,
            rounded(joint.log_weights(TEXTS, prefix_tokens=2)),
        )

    same_on_device(lambda: joint_of(language_model(), encoder=encoder, reads=reads), use)


def test_energies_and_their_gradients(language_model, tokenizer):
    same_on_device(lambda: joint_of(language_model()).energy, lambda energy: rounded(energy.text_energies(TEXTS)))

    def table(energy):
        return rounded(EnergyGradients(energy).token_table[3])

    same_on_device(lambda: joint_of(language_model()).energy, table)


@pytest.mark.parametrize("encoder", ["unit", "bit"])
def test_gradients_of_energies(language_model, encoder):
    """A forward and a backward pass: ∇E by the embeddings of the tokens, as attacks take it."""

    def gradient(energy):
        value, gradient_TD = EnergyGradients(energy).token_gradients(torch.tensor([5, 6, 7]))
        return round(value, 4), rounded(gradient_TD.flatten())

    same_on_device(lambda: joint_of(language_model(), encoder=encoder).energy, gradient)


def first_step(family, *, moved):
    """The gradients of the losses of a task's first batch, by the engine's own order: batch, device, loss, backward."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        task = families.FAMILIES[family]()
    batch = task.batch(0, range(families.BATCH))
    if moved:
        pretended.put_on_device(task.model, requires_grad=True)
        batch = {name: pretended.Pretended(tensor) for name, tensor in batch.items()}
    with pretended.pretended_device() if moved else nullcontext(), torch.enable_grad():
        losses = task.loss(task.model.train(), batch).losses
        sum(losses.values()).backward()
    gradients = {name: weight.grad for name, weight in task.model.named_parameters() if weight.grad is not None}
    return {name: gradient.held if moved else gradient for name, gradient in gradients.items()}


@pytest.mark.parametrize("family", sorted(families.FAMILIES))
def test_a_step_of_training(family):
    here, there = first_step(family, moved=False), first_step(family, moved=True)
    assert here and here.keys() == there.keys()
    torch.testing.assert_close(there, here, atol=1e-5, rtol=1e-4)


def test_a_batch_left_on_the_cpu_is_found_in_training():
    """Teeth: the engine's line that moves the batch is left out."""
    task = families.FAMILIES["energy"]()
    pretended.put_on_device(task.model, requires_grad=True)
    with pretended.pretended_device(), torch.enable_grad(), pytest.raises(pretended.MixedDevices, match="on cpu"):
        task.loss(task.model.train(), task.batch(0, range(families.BATCH)))


def test_energies_of_networks_that_people_have(tokenizer):
    sizes = {"vocab_size": len(tokenizer), "num_labels": 3}
    same_on_device(
        lambda: ClassifierEnergy(
            build(BertForSequenceClassification, **sizes), tokenizer, label=1, name="a", beta=1.0, judges="text"
        ),
        lambda energy: rounded(energy.text_energies(TEXTS)),
    )
    same_on_device(
        lambda: SimilarityEnergy(
            build(BertModel, vocab_size=len(tokenizer)), tokenizer, target=["a boat"], name="b", beta=1.0, judges="text"
        ),
        lambda energy: rounded(energy.text_energies(TEXTS)),
    )


@pytest.mark.parametrize("folder", ["model_folder", "masked_folder", "electric_folder"])
def test_scorers(request, folder):
    path = request.getfixturevalue(folder)
    same_on_device(
        lambda: Scorer.from_pretrained(path),
        lambda scorer: [rounded(text.token_scores) for texts in scorer.list_scores([TEXTS]) for text in texts],
    )


def test_a_tensor_left_on_the_cpu_is_found(language_model):
    """Teeth: one buffer of the network forgotten, one operation on tensors of both, one number read by numpy."""
    lm = language_model()
    pretended.put_on_device(lm.model.network)
    lm.model.network.lm_head.weight = torch.nn.Parameter(lm.model.network.lm_head.weight.held, requires_grad=False)
    with pretended.pretended_device(), pytest.raises(pretended.MixedDevices, match="on cpu"):
        lm.perplexity(TEXTS)
    with pretended.pretended_device() as device:
        here, there = torch.arange(3), torch.arange(3, device=device)
        assert (there + torch.tensor(1)).tolist() == [1, 2, 3] and there[here].tolist() == [0, 1, 2]
        for mixed in (lambda: here + there, lambda: here[there], lambda: torch.cat([here, there]), there.numpy):
            with pytest.raises(pretended.MixedDevices):
                mixed()
