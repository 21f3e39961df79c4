"""`POST /v1/chat/completions`: messages in, the joint model's answer out, in the shapes of OpenAI's chats.

A chat is a completion whose prompt is the token ids of the model's chat template, with the generation prompt: an answer
is, seed for seed, what a completion after these ids is. It ends with the template's end-of-turn token.

Relations  `completions` does all but translate; `bundles.chat` reads the template.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.completer import Chat
from energylm.apps.serve.completions import answered, chunks, sampling_route, sampling_task, streamed
from energylm.apps.serve.schemas import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogProbs,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatToken,
    CompletionChoice,
    CompletionResponse,
    LikelyToken,
    LogProbs,
)
from energylm.apps.serve.services import Serving

DEFAULT_TOKENS = 256  # of an answer; OpenAI's have no limit but the model's


def chat_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @sampling_route(router, "/v1/chat/completions", ChatResponse, "Answer a chat by joint sampling")
    async def chat(body: ChatRequest, request: Request, response: Response) -> Any:
        new_tokens = _max_new_tokens(body) or min(DEFAULT_TOKENS, serving.limits.max_tokens)
        task = sampling_task(
            body, serving, [_messages(body.messages)], max_new_tokens=new_tokens, logprobs=_likeliest(body)
        )
        answer = await answered(task, serving, request, response)
        return streamed(chat_chunks(chunks(answer, body)), response) if body.stream else chat_response(answer)

    return router


def _max_new_tokens(body: ChatRequest) -> int | None:
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise RefusedRequest(400, "max_completion_tokens and max_tokens differ; give one of them", param="max_tokens")
    return new or old


def _likeliest(body: ChatRequest) -> int | None:
    """How many of the likeliest tokens are told; None where no log-probabilities are."""
    if not body.logprobs and body.top_logprobs is not None:
        raise RefusedRequest(400, "top_logprobs: needs logprobs, which is false; set it to true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _messages(messages: Iterable[ChatMessage]) -> Chat:
    return tuple({"role": message.role, "content": _text(message)} for message in messages)


def _text(message: ChatMessage) -> str:
    content = message.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def chat_response(answer: CompletionResponse) -> ChatResponse:
    choices = [
        ChatChoice(
            index=choice.index,
            message=ChatAnswer(role="assistant", content=choice.text, refusal=None),
            logprobs=_log_probs(choice.logprobs),
            finish_reason=choice.finish_reason,
            energylm=choice.energylm,
        )
        for choice in answer.choices
    ]
    return ChatResponse(**_head(answer), object="chat.completion", choices=choices)


def chat_chunks(parts: Iterable[CompletionResponse]) -> Iterator[ChatChunk]:
    """Parts of a completion as parts of a chat; the first of each choice says who speaks."""
    begun: set[int] = set()
    for part in parts:
        choices = [_delta(choice, is_first=choice.index not in begun) for choice in part.choices]
        begun |= {choice.index for choice in choices}
        yield ChatChunk(**_head(part), object="chat.completion.chunk", choices=choices)


def _delta(choice: CompletionChoice, *, is_first: bool) -> ChatChunkChoice:
    values: dict[str, Any] = {"role": "assistant"} if is_first else {}
    if is_first or choice.finish_reason is None:
        values["content"] = choice.text
    facts = {} if choice.finish_reason is None else {"energylm": choice.energylm}
    return ChatChunkChoice(
        index=choice.index,
        delta=ChatDelta(**values),
        logprobs=_log_probs(choice.logprobs),
        finish_reason=choice.finish_reason,
        **facts,
    )


def _head(answer: CompletionResponse) -> dict[str, Any]:
    """What is the same for a completion and for a chat, but for the name of the id."""
    kept = {name: getattr(answer, name) for name in ("created", "model", "usage", "energylm")}
    return {"id": f"chat{answer.id}", **kept}


def _log_probs(logprobs: LogProbs | None) -> ChatLogProbs | None:
    if logprobs is None:
        return None
    rows = zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    content = [
        ChatToken(**_token(token, value), top_logprobs=[LikelyToken(**_token(*likely)) for likely in likeliest.items()])
        for token, value, likeliest in rows
    ]
    return ChatLogProbs(content=content)


def _token(token: str, log_prob: float) -> dict[str, Any]:
    return {"token": token, "logprob": log_prob, "bytes": list(token.encode())}
