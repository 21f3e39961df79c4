"""`POST /v1/completions`: OpenAI's parameters in, texts of the joint model out, whole or as server-sent events.

A stream sends the chosen text: the energy chooses among whole candidates, so the first piece comes when all are drawn.
Errors have come by then, hence a stream that begins is a stream that ends.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from energylm.apps.security import RefusedRequest, safe_json
from energylm.apps.serve.completer import Choice, Completion, CompletionTask, TokenLogProbs
from energylm.apps.serve.schemas import (
    LOWEST_TEMPERATURE,
    CandidateFacts,
    ChoiceFacts,
    CompletionAnswer,
    CompletionChoice,
    CompletionFacts,
    CompletionRequest,
    EnergyOptions,
    LogProbs,
    Usage,
)
from energylm.apps.serve.services import BASE_SUFFIX, Serving
from energylm.apps.serve.upstream import ProposalPool, Wish
from energylm.bundles.joint_texts import Context
from energylm.config.sampling import Truncation
from energylm.samplers.resampling import Weights

DEFAULT_TOKENS = 16  # OpenAI's
EVENT_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


def completions_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/v1/completions",
        response_model=CompletionAnswer,
        response_model_exclude_unset=True,
        responses={200: EVENT_STREAM},
        summary="Continue prompts by joint sampling",
    )
    async def completions(body: CompletionRequest, request: Request, response: Response) -> Any:
        asked = Asked(body, serving)
        serving.queue.check_room()  # before prompts are read and upstreams are asked
        if serving.upstream is not None:
            texts, prompt_tokens = await _by_upstream(asked, serving, request, response)
        else:
            texts, prompt_tokens = await _by_model(asked, serving, request, response)
        serving.metrics.tokens.inc(sum(one.tokens for one in texts))
        answer = completion_answer(
            texts, model=asked.model, seed=asked.seed, details=asked.details, prompt_tokens=prompt_tokens
        )
        if not body.stream:
            return answer
        timing = {"server-timing": response.headers["server-timing"]}
        with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return StreamingResponse(events(answer, with_usage=with_usage), media_type="text/event-stream", headers=timing)

    return router


class Asked:
    """A request with its defaults filled in, inside the server's limits."""

    def __init__(self, body: CompletionRequest, serving: Serving) -> None:
        limits, energy = serving.limits, body.energy or EnergyOptions()
        self.body = body
        self.model = _model(body.model, serving)
        self.prompts = _prompts(body)
        self.n, self.max_tokens = body.n or 1, body.max_tokens or DEFAULT_TOKENS
        self.seed = secrets.randbits(53) if body.seed is None else body.seed  # so that JavaScript can repeat it, too
        self.stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        self.details = bool(energy.details)
        self.temperature = 1.0 if body.temperature is None else body.temperature
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            raise RefusedRequest(
                400, f"temperature: give 0 (greedy) or {LOWEST_TEMPERATURE} at least", param="temperature"
            )
        if body.top_k is not None and energy.top_k is not None and body.top_k != energy.top_k:
            raise RefusedRequest(400, "top_k and energy.top_k differ; give one of them", param="top_k")
        self.top_k = body.top_k or energy.top_k or serving.services.top_k
        self.top_p = 1.0 if body.top_p is None else body.top_p
        self.proposals = self._proposals(energy, serving)
        self.weights: Weights | None = energy.weights
        serving.check_at_most(len(self.prompts), limits.max_prompts, param="prompt")
        serving.check_at_most(self.n, limits.max_choices, param="n")
        serving.check_at_most(self.max_tokens, limits.max_new_tokens, param="max_tokens")
        serving.check_at_most(self.proposals or 1, limits.max_proposals, param="energy.proposals")
        drawn = len(self.prompts) * self.n * (self.proposals or 1) * self.max_tokens
        serving.check_at_most(drawn, limits.max_request_tokens, param="prompts × n × proposals × max_tokens")
        for prompt in self.prompts:
            serving.check_at_most(len(prompt), limits.max_text_characters, param="prompt")

    def _proposals(self, energy: EnergyOptions, serving: Serving) -> int | None:
        has_energy = serving.services.chooser is not None or (
            serving.services.completer is not None and serving.services.completer.joint is not None
        )
        if not has_energy and energy.proposals not in (None, 1):
            raise RefusedRequest(
                400,
                "energy.proposals: this server has no energy to choose among candidates; leave it out",
                param="energy.proposals",
            )
        if not has_energy or energy.proposals == 1 or self.model.endswith(BASE_SUFFIX):
            return None
        return energy.proposals or serving.services.proposals

    @property
    def truncation(self) -> Truncation:
        if self.temperature == 0:
            return Truncation(top_k=1)
        top_p = None if self.top_p == 1.0 else self.top_p
        return Truncation(top_k=self.top_k, top_p=top_p, temperature=self.temperature)


def _model(name: str | None, serving: Serving) -> str:
    names = serving.model_names
    if not names:
        raise serving.lacking("language model", "`energylm serve LM`")
    if name is None:
        return serving.services.name
    if name not in names:
        raise RefusedRequest(
            404, f"there is no such model here; there is {', '.join(names)}", param="model", code="model_not_found"
        )
    return name


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = body.prompt
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)


async def _by_model(
    asked: Asked, serving: Serving, request: Request, response: Response
) -> tuple[list[Completion], int]:
    completer = serving.services.completer
    assert completer is not None

    def read() -> tuple[Context, ...]:
        contexts = tuple(completer.read(prompt) for prompt in asked.prompts)
        for context in contexts:
            completer.check(context, max_new_tokens=asked.max_tokens)
        return contexts

    task = CompletionTask(
        contexts=await asyncio.to_thread(read),
        choices=asked.n,
        max_new_tokens=asked.max_tokens,
        truncation=asked.truncation,
        proposals=asked.proposals,
        weights=asked.weights or "paper",
        stop=asked.stop,
        seed=asked.seed,
        logprobs=asked.body.logprobs,
    )
    texts = await serving.ask("complete", task, rows=task.rows, request=request, response=response)
    return texts, sum(len(context.energy) for context in task.contexts)


async def _by_upstream(
    asked: Asked, serving: Serving, request: Request, response: Response
) -> tuple[list[Completion], int]:
    chooser = serving.services.chooser
    assert chooser is not None and serving.upstream is not None
    if not all(isinstance(prompt, str) for prompt in asked.prompts):
        raise RefusedRequest(400, "prompt: with an upstream prompts are texts, not token ids", param="prompt")
    if asked.body.logprobs is not None:
        raise RefusedRequest(400, "logprobs: not offered with an upstream; leave it out", param="logprobs")
    weights = asked.weights or ("paper" if chooser.lm is None else "corrected")
    prompts = tuple(str(prompt) for prompt in asked.prompts for _ in range(asked.n))
    wish = Wish(
        prompts=prompts,
        proposals=1 if asked.temperature == 0 else asked.proposals or 1,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        seed=asked.seed,
        logprobs=weights == "corrected" and chooser.lm is not None,
    )
    proposals = await serving.upstream.propose(wish)
    is_untruncated = asked.temperature == 1 and asked.top_p == 1 and asked.top_k is None
    pools = [
        ProposalPool(prompt, of_prompt, weights, is_untruncated, asked.stop, asked.seed, index)
        for index, (prompt, of_prompt) in enumerate(zip(prompts, proposals, strict=True))
    ]
    rows = len(prompts) * wish.proposals
    return await serving.ask("choose", pools, rows=rows, request=request, response=response), 0


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
