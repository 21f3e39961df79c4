"""Chats: messages as the token ids that a model was taught to answer, by its tokenizer's own template.

    [{"role": "user", "content": "Hi"}]  →  <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n  →  ids

The ids end with the template's generation prompt, and an answer ends with the template's end-of-turn token: the first
special token that the template writes after an assistant's words, which need not be the tokenizer's EOS (Gemma, Phi-3).
As in transformers, a message that spells a special token of the template is read as that token.

Relations  `language_model` answers chats alone, `residual_model` under an energy; `joint_texts` keeps the messages for
           energies that judge an answer to them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerFast

from energylm.errors import DataError, ModelError

Message = Mapping[str, str]  # role and content
_ANSWER = "answer"  # stands for an assistant's words where the template is looked at


def checked_messages(messages: Sequence[Message]) -> tuple[dict[str, str], ...]:
    """The messages of one chat; what is none is refused with its number."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise DataError(
            f"{messages!r:.40} came, expected the messages of a chat: "
            '[{"role": "user", "content": "…"}]'
        )  # fmt: skip
    if not messages:
        raise DataError('a chat without messages came; give at least [{"role": "user", "content": "…"}]')
    return tuple(_checked(number, message) for number, message in enumerate(messages, start=1))


def _checked(number: int, message: Any) -> dict[str, str]:
    names = ("role", "content")
    if not isinstance(message, Mapping) or any(not isinstance(message.get(name), str) for name in names):
        raise DataError(f"message {number}: {message!r:.60} came, expected a role and a content, both text")
    if unknown := sorted(set(map(str, message)) - set(names)):
        raise DataError(f"message {number} has {unknown[0]!r}, which no template here reads; leave it out")
    return {name: message[name] for name in names}


def spoken_text(messages: Sequence[Message]) -> str:
    """What was said, without the template: the prompt of an answer for those who read text."""
    return "".join(f"{message['content']}\n" for message in messages)


def chat_ids(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], *, name: str) -> list[int]:
    """Token ids of the chat and of the prompt to answer it; `name` is the model's, in messages."""
    return encoded_chat(tokenizer, rendered_chat(tokenizer, checked_messages(messages), name=name, answering=True))


def end_of_turn_id(tokenizer: PreTrainedTokenizerFast, *, name: str) -> int | None:
    """The token that ends an answer: the template's, or EOS where the template writes none."""
    chat = ({"role": "user", "content": "question"}, {"role": "assistant", "content": _ANSWER})
    after = rendered_chat(tokenizer, chat, name=name, answering=False).rpartition(_ANSWER)[2]
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return next((token for token in encoded_chat(tokenizer, after) if token in special), tokenizer.eos_token_id)


def rendered_chat(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, str]], *, name: str, answering: bool
) -> str:
    """The chat as the template writes it, with the prompt to answer it where that is to come."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"{name} has no chat template, so it was not taught to answer messages; give an instruction-tuned model "
            "(smollm2-135m), set tokenizer.chat_template, or complete a text instead"
        )
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answering))
    except TemplateError as error:  # templates refuse roles and orders that their model does not know
        raise DataError(f"{name}'s chat template refuses these messages ({error}); mend them") from None


def encoded_chat(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Special tokens that the template spells are read as such, and none are added."""
    return list(tokenizer(text, add_special_tokens=False, truncation=False)["input_ids"])
