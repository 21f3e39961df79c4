"""Chats: the template's ids, the token that ends an answer, and what is refused."""

import pytest
import torch

from energylm import LanguageModel, ResidualModel
from energylm.bundles.chat import end_of_turn_id
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.config.sampling import JointSampling
from energylm.data.tokenizer import train_tokenizer
from energylm.errors import DataError, ModelError
from energylm.models.causal import CausalLanguageModel
from energylm.models.presets import build_network

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|cls|>{{ message['role'] }}: {{ message['content'] }}<|sep|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|cls|>assistant: {% endif %}"
)
CHAT = [{"role": "user", "content": "the clerk counts"}, {"role": "assistant", "content": "boats"}]
CLS, SEP = 3, 4


@pytest.fixture
def tokenizer():
    made = train_tokenizer(["the clerk counts the boats. user: assistant: "] * 20, vocabulary_size=290)
    made.chat_template = TEMPLATE
    return made


@pytest.fixture
def lm(tokenizer):
    return make_lm(tokenizer)


def make_lm(tokenizer, *, eos=0):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            "tiny", vocabulary_size=len(tokenizer), max_length=96, eos_token_id=0, overrides={"layers": 1, "width": 16}
        )
    return LanguageModel(
        CausalLanguageModel(network.eval(), start_token_id=0, eos_token_id=eos), tokenizer, name="tiny"
    )


def test_ids_are_the_templates_and_end_where_the_answer_begins(lm):
    """By hand: each turn framed by the template's special tokens; teeth: the same text encoded as a text spells them
    out, letter by letter."""
    framed = [[CLS, *lm.encode(f"{turn['role']}: {turn['content']}"), SEP, *lm.encode("\n")] for turn in CHAT]
    expected = [*framed[0], *framed[1], CLS, *lm.encode("assistant: ")]
    assert lm.chat_ids(CHAT) == expected
    rendered = lm.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert lm.encode(rendered) != expected


def test_an_answer_ends_with_the_templates_token_and_else_with_eos(tokenizer):
    assert end_of_turn_id(tokenizer, name="tiny") == SEP != tokenizer.eos_token_id
    tokenizer.chat_template = TEMPLATE.replace("<|sep|>", "")
    assert end_of_turn_id(tokenizer, name="tiny") == tokenizer.eos_token_id


def test_a_context_keeps_the_messages_for_the_energy(lm):
    texts = JointTexts(lm)
    context = texts.chat(CHAT)
    assert context.lm == context.energy == lm.chat_ids(CHAT) and list(context.messages) == CHAT
    assert texts.prompt_text(context) == "the clerk counts\nboats\n"
    assert context.extended([5]).messages == context.messages == context.last(3).messages
    (plain,) = texts.contexts("the clerk")
    assert plain.messages == () and texts.prompt_text(plain) == "the clerk"
    assert plain.extended([5, 6]).extended([7]).split() == (plain, [5, 6, 7])
    assert plain.extended([5, 6]).last(1).split()[1] == [6]
    new = [lm.encode(" counts"), [], lm.encode(" boats.")]
    assert texts.new_texts(plain, new) == [" counts", "", " boats."]


class Readable:
    """An energy that notes what it is told of contexts, and likes short texts."""

    def __init__(self):
        self.contexts = []

    def context_energies(self, contexts, tokens_BNT, lengths_BN):
        self.contexts += contexts
        return 0.1 * lengths_BN.double()

    def energies(self, tokens_BT, lengths_B):
        return 0.1 * lengths_B.double()


def test_a_chat_is_the_same_text_completed_after_the_template_token_for_token(lm):
    """The answer ends with the template's token, so the language model that completes ends there, too; teeth: one that
    ends with the tokenizer's EOS writes on."""
    options = {"n": 40, "max_new_tokens": 12, "top_k": 60, "seed": 3}
    ids, turns = lm.chat_ids(CHAT), make_lm(lm.tokenizer, eos=SEP)
    chat, completed = lm.chat(CHAT, **options), turns.sample(ids, **options)
    assert torch.equal(chat.continuations.tokens, completed.continuations.tokens) and chat.texts == completed.texts
    ended = chat.continuations.lengths < 12
    assert ended.any() and not torch.equal(lm.sample(ids, **options).continuations.lengths, chat.continuations.lengths)
    for lengths, tokens in zip(chat.continuations.lengths[ended], chat.continuations.tokens[ended], strict=True):
        assert tokens[lengths - 1] == SEP

    answer = ResidualModel(lm, Readable()).chat(CHAT, **options)
    expected = ResidualModel(turns, Readable()).sample(ids, **options)
    assert answer.tokens == expected.tokens and answer.texts == expected.texts
    assert torch.equal(answer.pools[0].tokens, chat.continuations.tokens[0]) and answer.kl == expected.kl


def test_the_energy_is_told_the_messages_and_what_was_answered_so_far(lm):
    energy = Readable()
    ResidualModel(lm, energy).chat_batch([CHAT], JointSampling(n=4, max_new_tokens=2, chunks=2))
    first, second = energy.contexts
    assert list(first.messages) == list(second.messages) == CHAT and second.split()[0] == first
    assert isinstance(first, Context) and len(second.split()[1]) == 2


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "expected the messages of a chat"),
        ([], "a chat without messages"),
        ([{"role": "user"}], "message 1: .* expected a role and a content"),
        ([CHAT[0], {"role": "user", "content": ["a"]}], "message 2: .* both text"),
        ([CHAT[0] | {"name": "Ann"}], "message 1 has 'name'"),
        ([{"role": "tool", "content": "4"}], "template refuses these messages .no tools here."),
    ],
)
def test_what_is_no_chat_is_refused(lm, messages, said):
    with pytest.raises(DataError, match=said):
        lm.chat_ids(messages)


def test_a_model_without_a_template_names_the_cure(lm):
    lm.tokenizer.chat_template = None
    with pytest.raises(ModelError, match=r"tiny has no chat template.*give an instruction-tuned model"):
        lm.chat_ids(CHAT)
