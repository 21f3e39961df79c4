"""Texts as OpenAI-style clients read them: one answer, or its pieces as server-sent events."""

import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

from energylm.pipelines.serve_completions import Choice, Completion
from energylm.pipelines.serve_logprobs import TokenLogProbs
from energylm.web.security import safe_json
from energylm.web.serve_schemas import (
    CandidateFacts,
    ChoiceFacts,
    CompletionAnswer,
    CompletionChoice,
    CompletionFacts,
    LogProbs,
    Usage,
)


def completion_answer(
    texts: list[Completion], *, model: str, seed: int, details: bool, prompt_tokens: int
) -> CompletionAnswer:
    """The answer to a request for these texts."""
    written = sum(one.tokens for one in texts)
    return CompletionAnswer(
        id=f"cmpl-{secrets.token_hex(12)}",
        object="text_completion",
        created=int(time.time()),
        model=model,
        choices=[
            CompletionChoice(
                text=one.text,
                index=index,
                logprobs=None if one.logprobs is None else _logprobs(one.logprobs),
                finish_reason=one.finish_reason,
                energylm=None if one.choice is None else _choice_facts(one.choice),
            )
            for index, one in enumerate(texts)
        ],
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=written, total_tokens=prompt_tokens + written),
        energylm=_facts(texts, seed=seed, details=details),
    )


def _facts(texts: list[Completion], *, seed: int, details: bool) -> CompletionFacts:
    choices = [one.choice for one in texts if one.choice is not None]
    facts = CompletionFacts(seed=seed, warning=choices[0].warning if choices else None)
    if not details:
        return facts
    if not choices:
        return facts.model_copy(update={"candidates": [], "base": [one.text for one in texts]})
    pools = [choice.candidates() for choice in choices]
    return CompletionFacts(
        seed=seed,
        warning=facts.warning,
        candidates=[CandidateFacts(text=one.text, energy=one.energy, log_weight=one.log_weight) for one in pools[0]],
        ess=choices[0].ess,
        base=[candidates[0].text for candidates in pools],
    )


def _choice_facts(choice: Choice) -> ChoiceFacts:
    return ChoiceFacts(
        energy=choice.energy,
        log_weight=choice.log_weight,
        ess=choice.ess,
        largest_share=choice.largest_share,
        warning=choice.warning,
    )


def _logprobs(told: TokenLogProbs) -> LogProbs:
    return LogProbs(
        tokens=told.pieces, token_logprobs=told.log_probs, top_logprobs=told.likeliest, text_offset=told.offsets
    )


def events(answer: CompletionAnswer, *, with_usage: bool) -> Iterator[str]:
    """Choice after choice, piece after piece, as server-sent events."""
    head = answer.model_copy(update={"choices": [], "usage": None, "energylm": None})
    for choice in answer.choices:
        for piece, logprobs in _pieces(choice):
            part = CompletionChoice(text=piece, index=choice.index, logprobs=logprobs, finish_reason=None)
            yield _event(head, choices=[part])
        end = CompletionChoice(
            text="", index=choice.index, logprobs=None, finish_reason=choice.finish_reason, energylm=choice.energylm
        )
        yield _event(head, choices=[end], energylm=answer.energylm)
    if with_usage:
        yield _event(head, usage=answer.usage)
    yield "data: [DONE]\n\n"


def _event(head: CompletionAnswer, **values: Any) -> str:
    return f"data: {safe_json(head.model_copy(update=values).model_dump(mode='json'))}\n\n"


def _pieces(choice: CompletionChoice) -> list[tuple[str, LogProbs | None]]:
    """The text in words; where log-probabilities are told, in tokens, each with its own."""
    told = choice.logprobs
    if told is None:
        return [(word, None) for word in re.findall(r"\s*(?:\w+|[^\w\s]+)|\s+$", choice.text)]
    ends = [*told.text_offset[1:], len(choice.text)]
    return [
        (
            choice.text[told.text_offset[i] : ends[i]],
            LogProbs(
                tokens=told.tokens[i : i + 1],
                token_logprobs=told.token_logprobs[i : i + 1],
                top_logprobs=told.top_logprobs[i : i + 1],
                text_offset=told.text_offset[i : i + 1],
            ),
        )
        for i in range(len(told.tokens))
    ]
