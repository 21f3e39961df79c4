"""Classifiers, reward models and sentence encoders as energies, against each text read by hand, alone, without padding.

The language model has 300 tokens, so that all continuations by one token are enumerated: `next_token_table` over all of
them gives the joint model's exact law under a network's energy.
"""

import inspect
import math
from contextlib import contextmanager

import pytest
import torch
import yaml
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from energylm import Energy, LanguageModel, ResidualModel, Scorer
from energylm.bundles.energy_binding import Passage
from energylm.bundles.text_energy import LIVE_ARGUMENTS
from energylm.data.tokenizer import load_tokenizer
from energylm.errors import ConfigError, ModelError
from energylm.testing import exact_language_model

PROMPT = "The clerk counts"
TEXTS = ["a boat", "The old miller paints the winter coats.", "", "Her sister sells a letter. A stranger mends a lamp."]
TEMPLATE = "{% for m in messages %}<|cls|>{{ m['role'] }}: {{ m['content'] }}<|sep|>{% endfor %}"
CHAT = [{"role": "user", "content": "What does the miller paint?"}]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


def random_network(make, seed):
    """With weights large enough to tell texts apart."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = make().eval()
    for name, weight in network.named_parameters():
        if any(part in name for part in ("classifier.weight", "score", "pooler", "word_embeddings")):
            weight.data.mul_(50)
    return network


@pytest.fixture(scope="module")
def classifier(bert_folder):
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    labels = dict(enumerate(("calm", "glad", "sad")))
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=96, num_labels=3, id2label=labels, **SHAPE)
    return random_network(lambda: BertForSequenceClassification(config), 3), tokenizer


@pytest.fixture(scope="module")
def rewarder(model_folder):
    """A causal body, and a tokenizer whose padding token is 0, which is also its end of text."""
    tokenizer = load_tokenizer(model_folder)
    config = LlamaConfig(vocab_size=300, num_labels=1, max_position_embeddings=96, pad_token_id=0, **SHAPE)
    return random_network(lambda: LlamaForSequenceClassification(config), 4), tokenizer


def alone(network, ids):
    with torch.no_grad():
        return network(torch.tensor([ids]))


def classifier_by_hand(parts, text, label=1):
    network, tokenizer = parts
    return float(alone(network, tokenizer(text)["input_ids"]).logits.double().log_softmax(-1)[0, label])


def reward_by_hand(parts, ids):
    network, _ = parts
    with torch.no_grad():
        hidden_TD = network.model(torch.tensor([ids])).last_hidden_state[0]
        return float(network.score(hidden_TD[-1]))


def similarity_by_hand(folder, text, target):
    tokenizer, network = (
        AutoTokenizer.from_pretrained(folder),
        AutoModel.from_pretrained(folder, add_pooling_layer=False),
    )
    means = [alone(network, tokenizer(words)["input_ids"]).last_hidden_state[0].mean(0) for words in (text, target)]
    return float(torch.cosine_similarity(*means, dim=0))


@pytest.fixture(scope="module", params=["classifier", "reward", "similarity", "scorer"])
def energy_and_hand(request, classifier, rewarder, bert_folder, model_folder):
    """An energy, and −E/β of a completion by hand."""
    if request.param == "classifier":
        network, tokenizer = classifier
        energy = Energy.from_classifier(network, tokenizer=tokenizer, label="Glad", beta=2.0)
        return energy, lambda text: classifier_by_hand(classifier, text)
    if request.param == "reward":
        network, tokenizer = rewarder
        energy = Energy.from_reward_model(network, tokenizer=tokenizer, beta=2.0)
        return energy, lambda text: reward_by_hand(rewarder, tokenizer(PROMPT + text)["input_ids"])
    if request.param == "similarity":
        energy = Energy.from_similarity(bert_folder, "a boat", beta=2.0)
        return energy, lambda text: similarity_by_hand(bert_folder, text, "a boat")
    scorer = Scorer.from_pretrained(model_folder)
    energy = Energy.from_scorer(scorer, beta=2.0)
    return energy, lambda text: scorer.score([text], normalise="token")[0] if text.strip() else -math.inf


def test_the_joint_law_is_exact_under_every_network(lm, energy_and_hand):
    energy, by_hand = energy_and_hand
    table = ResidualModel(lm, energy).next_token_table(PROMPT, max_new_tokens=1, candidates=300, keep=300)
    joint = {entry.token: entry.probability for entry in table.joint}
    context = lm.codec.context(PROMPT)
    base = exact_language_model(lm, context, max_new_tokens=1)
    texts = lm.codec.new_texts(context, base.tokens.tolist())
    score_by_text = {text: by_hand(text) for text in dict.fromkeys(texts)}
    score_N = torch.tensor([score_by_text[text] for text in texts], dtype=torch.float64)
    law_N = (base.log_prob + 2.0 * score_N).softmax(0)
    drawn_N = torch.tensor([joint[token] for token in base.tokens[:, 0].tolist()], dtype=torch.float64)
    torch.testing.assert_close(drawn_N, law_N, atol=1e-5, rtol=1e-3)
    wrong_N = (base.log_prob - 2.0 * score_N.clamp(min=-50)).softmax(0)  # teeth: the sign
    assert (wrong_N - law_N).abs().sum() > 0.005


@contextmanager
def hooked(energy, rows):
    """The rows of each pass through an energy's network are noted."""
    network = energy.network if hasattr(energy, "network") else energy._scorer.reader.lm.model.network
    body = network.base_model

    def note(module, args, options):
        rows.append(len(options["input_ids"] if "input_ids" in options else args[0]))

    hook = body.register_forward_pre_hook(note, with_kwargs=True)
    yield
    hook.remove()


def test_a_batch_gives_what_each_text_gives_alone(energy_and_hand):
    energy, _ = energy_and_hand
    passages = [Passage(text, prompt=PROMPT) for text in TEXTS]
    together = energy.passage_energies(passages)
    apart = torch.cat([energy.passage_energies([passage]) for passage in passages])
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)
    passes = []
    with hooked(energy, passes):
        energy.to(batch_tokens=1)  # a text at a time
        torch.testing.assert_close(energy.passage_energies(passages), together, atol=1e-5, rtol=1e-5)
        assert passes == [1] * len(passes) and len(passes) >= 3  # of the empty text a scorer asks nothing
        energy.to(batch_tokens=4096)
        energy.passage_energies(passages)
        assert max(passes) > 1  # teeth: with room for all they travel together
    assert len(set(together.tolist())) == len(TEXTS)


def test_a_causal_reward_model_is_read_at_its_last_token(rewarder):
    """Whatever stands behind it: transformers' own rule, the last token that is not padding, would be fooled by a text
    that ends with the padding token; reading the last position, by padding itself."""
    network, tokenizer = rewarder
    energy = Energy.from_reward_model(network, tokenizer=tokenizer)
    short, long = tokenizer("a boat<|endoftext|>")["input_ids"], tokenizer(TEXTS[1])["input_ids"]
    assert short[-1] == network.config.pad_token_id
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(short), torch.tensor(long)], batch_first=True)
    lengths = torch.tensor([len(short), len(long)])
    with torch.no_grad():
        read = energy._batch_scores(rows, lengths)
        usual = network(rows, attention_mask=(rows != 0).long()).logits[:, 0]
    expected = torch.tensor([reward_by_hand(rewarder, short), reward_by_hand(rewarder, long)])
    torch.testing.assert_close(read, expected, atol=1e-4, rtol=1e-4)
    assert abs(float(usual[0] - expected[0])) > 0.01
    with torch.no_grad():
        at_the_end = network.score(network.model(rows).last_hidden_state[0, -1])
    assert abs(float(at_the_end) - float(expected[0])) > 0.01


def test_a_reward_model_with_a_template_reads_the_conversation(rewarder, lm):
    """A prompt is the user's turn; a chat stays as it is. The template's special tokens are tokens, not letters."""
    network, tokenizer = rewarder
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, chat_template=TEMPLATE)
    energy = Energy.from_reward_model(network, tokenizer=tokenizer, beta=3.0)
    answer = {"role": "assistant", "content": "a boat"}
    for passage, messages in (
        (Passage("a boat", prompt="Paint!"), [{"role": "user", "content": "Paint!"}, answer]),
        (Passage("a boat", prompt="other", messages=tuple(CHAT)), [*CHAT, answer]),
    ):
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert ids.count(3) == 2 and ids[-1] == 4  # <|cls|> twice, <|sep|> at the end
        expected = -3.0 * reward_by_hand(rewarder, ids)
        assert float(energy.passage_energies([passage])) == pytest.approx(expected, abs=1e-3)
        plain = -3.0 * reward_by_hand(rewarder, tokenizer("a boat")["input_ids"])
        assert abs(plain - expected) > 0.01  # teeth: without the template


def test_of_several_targets_the_nearest_counts(bert_folder):
    both = Energy.from_similarity(bert_folder, ["a boat", "The winter coats"], beta=1.0)
    each = [Energy.from_similarity(bert_folder, target, beta=1.0) for target in both.target]
    nearest = torch.stack([energy.text_energies(TEXTS) for energy in each]).amin(0)
    torch.testing.assert_close(both.text_energies(TEXTS), nearest)
    assert float(each[0].text_energies(["a boat"])) == pytest.approx(-1.0, abs=1e-6)


def test_long_texts_are_read_at_their_end(classifier):
    network, tokenizer = classifier
    energy = Energy.from_classifier(network, tokenizer=tokenizer, label=1)
    long = "a boat " * 200
    ids = tokenizer(long)["input_ids"]
    expected = float(alone(network, [ids[0], *ids[-95:]]).logits.double().log_softmax(-1)[0, 1])
    assert float(energy.text_energies([long])) == pytest.approx(-expected, abs=1e-4)


def test_networks_are_saved_and_read_again(tmp_path, classifier, rewarder, bert_folder):
    network, tokenizer = classifier
    rewards = Energy.from_reward_model(rewarder[0], tokenizer=rewarder[1], beta=0.5)
    for number, energy in enumerate(
        (
            Energy.from_classifier(network, tokenizer=tokenizer, label="sad", beta=3.0, judges="text"),
            rewards,
            Energy.from_similarity(bert_folder, ["a boat", "a bridge"], beta=7.0),
            2 * rewards + Energy.from_similarity(bert_folder, "a boat"),
        )
    ):
        energy.save_pretrained(tmp_path / str(number))
        again = Energy.load(tmp_path / str(number))
        assert (again.kind, again.name, again.beta) == (energy.kind, energy.name, energy.beta)
        passages = [Passage(text, prompt=PROMPT) for text in TEXTS]
        torch.testing.assert_close(again.passage_energies(passages), energy.passage_energies(passages))
    network.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    named = Energy.load(f"classifier:{tmp_path / 'plain'}:glad", beta=2.0)
    direct = Energy.from_classifier(network, tokenizer=tokenizer, label="glad", beta=2.0)
    torch.testing.assert_close(named.text_energies(TEXTS), direct.text_energies(TEXTS))


def test_mistakes_are_named(classifier, rewarder, bert_folder):
    network, tokenizer = classifier
    with pytest.raises(ConfigError, match="no label 'angry'; this classifier has calm, glad, sad"):
        Energy.from_classifier(network, tokenizer=tokenizer, label="angry")
    with pytest.raises(ConfigError, match="a classifier in memory needs its tokenizer"):
        Energy.from_classifier(network, label="glad")
    with pytest.raises(ModelError, match=r"has 3 outputs, so it is no reward model; take Energy.from_classifier"):
        Energy.from_reward_model(network, tokenizer=tokenizer)
    with pytest.raises(ModelError, match=r"one output and no labels; take Energy.from_reward_model"):
        Energy.from_classifier(rewarder[0], tokenizer=rewarder[1], label=0)
    with pytest.raises(ConfigError, match="a target of similarity is empty"):
        Energy.from_similarity(bert_folder, " ")
    with pytest.raises(ConfigError, match="classifier:name names no label"):
        Energy.load("classifier:name")


# kind: (constructor, TEXT behind KIND:, what the text says, every other argument with a value that is not its default)
WRITTEN = {
    "similarity": ("from_similarity", "a boat", {"encoder", "target"}, {"beta": 3.0, "judges": "text"}),
    "classifier": ("from_classifier", "{classifier}:glad", {"network", "label"}, {"beta": 3.0, "judges": "text"}),
    "reward-model": ("from_reward_model", "{rewarder}", {"network"}, {"beta": 3.0}),
    "scorer": (
        "from_scorer",
        "{lm}",
        {"scorer"},
        {"normalise": "none", "beta": 3.0, "judges": "text", "eos": True, "casing": "upper"},
    ),
    "pattern": ("from_pattern", "^a boat", {"pattern"}, {"must": "avoid", "judges": "text"}),
    "length": ("from_length", "1-2", {"minimum", "maximum", "unit"}, {"judges": "text"}),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory, classifier, rewarder, model_folder, bert_folder):
    """The same networks as folders, by the names that stand in `WRITTEN`."""
    folder = tmp_path_factory.mktemp("written")
    for name, (network, tokenizer) in (("classifier", classifier), ("rewarder", rewarder)):
        network.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {"classifier": folder / "classifier", "rewarder": folder / "rewarder", "lm": model_folder}


def in_file(file, **part):
    file.write_text(yaml.safe_dump({"parts": [part]}))
    return Energy.load(file).passage_energies([Passage("a boat", prompt=PROMPT), Passage("calm words", prompt=PROMPT)])


@pytest.mark.parametrize("kind", WRITTEN)
def test_whatever_a_constructor_takes_can_be_written_into_a_file(kind, written, bert_folder, tmp_path):
    """All arguments by their own names, each told apart from its default; a misspelt one names its neighbour."""
    constructor, text, said, options = WRITTEN[kind]
    own = set(inspect.signature(getattr(Energy, constructor)).parameters) - {*LIVE_ARGUMENTS, "device", "dtype"}
    assert own - said <= set(options)  # nothing is left out here that Python has
    part = {"energy": f"{kind}:{text.format(**written)}"}
    if kind == "similarity":
        part["encoder"] = str(bert_folder)
    plain = in_file(tmp_path / "energy.yaml", **part)
    for name, value in options.items():
        assert not torch.equal(in_file(tmp_path / "energy.yaml", **part, **{name: value}), plain), name
    with pytest.raises(ConfigError, match=r"takes no 'judgess'; (did you mean 'judges'|known: )"):
        in_file(tmp_path / "energy.yaml", **part, judgess="text")


def test_a_folder_takes_beta_alone(written, energy_folder, tmp_path):
    with pytest.raises(ConfigError, match="has its arguments already; give beta alone"):
        in_file(tmp_path / "energy.yaml", energy=str(energy_folder), judges="text")
    half = in_file(tmp_path / "energy.yaml", energy=str(energy_folder), beta=0.5)
    torch.testing.assert_close(half, 0.5 * in_file(tmp_path / "energy.yaml", energy=str(energy_folder)))


def test_every_constructor_moves_what_it_loads(written, bert_folder):
    """`dtype=` of each, seen by its network; a CPU takes float64 and no half precision."""
    made = [
        Energy.from_similarity(bert_folder, "a boat", dtype="float64"),
        Energy.from_classifier(written["classifier"], label=0, dtype=torch.float64),
        Energy.load(f"reward-model:{written['rewarder']}", dtype="float64", device="cpu"),
    ]
    for energy in made:
        assert energy.network.dtype == torch.float64
        assert energy.text_energies(["a boat"]).isfinite().all()
    with pytest.raises(ModelError, match="came for a CPU"):
        Energy.from_classifier(written["classifier"], label=0, dtype="float16")
    with pytest.raises(ConfigError, match="batch_tokens 0 came"):
        made[0].to(batch_tokens=0)
