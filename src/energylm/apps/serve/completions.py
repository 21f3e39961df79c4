"""`POST /v1/completions`: OpenAI's parameters in, texts of the joint model out, whole or as server-sent events.

A stream sends the chosen text: the energy chooses among whole candidates, so the first piece comes when all are drawn.
Errors have come by then, hence a stream that begins is a stream that ends.

Relations  `chat` has messages for prompts and goes the same way: `sampling_task`, `answered`, `chunks`, `streamed`.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from fastapi import APIRouter, Request
from fastapi.types import DecoratedCallable
from starlette.responses import Response, StreamingResponse

from energylm.apps.security import RefusedRequest, safe_json
from energylm.apps.serve.completer import CompletionTask, Prompt
from energylm.apps.serve.schemas import (
    LOWEST_TEMPERATURE,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    EnergyOptions,
    LogProbs,
    SamplingRequest,
    SamplingResponse,
)
from energylm.apps.serve.services import BASE_SUFFIX, Serving
from energylm.apps.serve.upstream import proposals_of
from energylm.bundles.joint_texts import Context
from energylm.config.sampling import JointSampling
from energylm.errors import TooFewAccepted

DEFAULT_TOKENS = 16  # OpenAI's
EVENT_STREAM = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
END_OF_STREAM = "data: [DONE]\n\n"
# Which samplers read an option; what has no effect is refused, so that nobody relies on it.
OPTIONS_OF_SAMPLERS = {
    "bound": ("rejection", "quasi-rejection"),
    "distance": ("quasi-rejection",),
    "block_tokens": ("suffix", "smc"),
    "moves": ("suffix",),
}


def completions_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @sampling_route(router, "/v1/completions", CompletionResponse, "Continue prompts by joint sampling")
    async def completions(body: CompletionRequest, request: Request, response: Response) -> Any:
        new_tokens = body.max_tokens or DEFAULT_TOKENS
        task = sampling_task(body, serving, _prompts(body), max_new_tokens=new_tokens, logprobs=body.logprobs)
        answer = await answered(task, serving, request, response)
        return streamed(chunks(answer, body), response) if body.stream else answer

    return router


def sampling_route(
    router: APIRouter, path: str, answer: type[SamplingResponse], summary: str
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """The decorator of an endpoint that answers whole, or with a stream of the same in parts."""
    return router.post(
        path,
        response_model=answer,
        response_model_exclude_unset=True,
        responses={200: EVENT_STREAM},
        summary=summary,
    )


def sampling_task(
    body: SamplingRequest,
    serving: Serving,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    logprobs: int | None,
) -> CompletionTask:
    """The request with its defaults filled in; an error where it leaves the server's limits."""
    limits, energy = serving.limits, body.energy or EnergyOptions()
    model = _model(body.model, serving)
    temperature = 1.0 if body.temperature is None else body.temperature
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise RefusedRequest(400, f"temperature: give 0 (greedy) or {LOWEST_TEMPERATURE} at least", param="temperature")
    if body.top_k is not None and energy.top_k is not None and body.top_k != energy.top_k:
        raise RefusedRequest(400, "top_k and energy.top_k differ; give one of them", param="top_k")
    chooser = serving.services.chooser
    if chooser is not None and energy.sampler not in (None, "resample"):
        raise RefusedRequest(400, "an upstream's candidates are resampled; leave sampler out", param="energy.sampler")
    proposals, sampler = _proposals(energy, model, serving), _sampler(energy, serving.services.lookahead)
    if sampler.power != 1 and (chooser is not None or proposals is None):
        raise RefusedRequest(
            400,
            "energy.power: only candidates of this server, chosen among by its energy, have one; leave it out",
            param="energy.power",
        )
    task = CompletionTask(
        model=model,
        prompts=tuple(prompts),
        n=body.n or 1,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or energy.top_k or serving.services.top_k,
        proposals=proposals,
        weights=energy.weights or ("paper" if chooser is None or chooser.lm is None else "corrected"),
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        seed=secrets.randbits(53) if body.seed is None else body.seed,  # so that JavaScript can repeat it, too
        logprobs=logprobs,
        details=bool(energy.details),
        sampler=sampler,
    )
    serving.check_at_most(len(prompts), limits.max_prompts, param="prompt")
    serving.check_at_most(task.n, limits.max_choices, param="n")
    serving.check_at_most(task.max_new_tokens, limits.max_tokens, param="max_tokens")
    serving.check_at_most(task.proposals or 1, limits.max_proposals, param="energy.proposals")
    drawn = "prompts × n × proposals × max_tokens" + (" × (moves + 1)" if sampler.sampler == "suffix" else "")
    serving.check_at_most(task.tokens_drawn, limits.max_request_tokens, param=drawn)
    for prompt in prompts:
        param = "messages" if isinstance(prompt, tuple) else "prompt"
        serving.check_at_most(_length(prompt), limits.max_text_characters, param=param)
    return task


def _length(prompt: Prompt) -> int:
    """In characters, or in token ids."""
    return sum(len(message["content"]) for message in prompt) if isinstance(prompt, tuple) else len(prompt)


async def answered(task: CompletionTask, serving: Serving, request: Request, response: Response) -> CompletionResponse:
    """The models' answer; `response` gets a header that tells how long it took."""
    serving.queue.check_room()  # before prompts are read and upstreams are asked
    ask = _ask_models if serving.upstream is None else _ask_upstream
    kind, payload, rows = await ask(task, serving)
    answer: CompletionResponse
    try:
        answer = await serving.ask(kind, payload, rows=rows, request=request, response=response)
    except TooFewAccepted as error:  # bad luck, and no mistake; on a 422 clients do not ask again by themselves
        cure = f"in a request these are energy.proposals, energy.bound and energy.sampler (its seed was {task.seed})"
        raise RefusedRequest(422, f"{error}; {cure}", param="energy.proposals", code="too_few_accepted") from None
    serving.metrics.tokens.inc(0 if answer.usage is None else answer.usage.completion_tokens)
    return answer


def _sampler(energy: EnergyOptions, lookahead: str) -> JointSampling:
    """The sampler with its own options; what is not said has the default of `energylm generate`."""
    name = energy.sampler or "resample"
    for option, samplers in OPTIONS_OF_SAMPLERS.items():
        if getattr(energy, option) is not None and name not in samplers:
            raise RefusedRequest(
                400,
                f"energy.{option} is an option of {' and '.join(samplers)}, but the sampler is {name}; leave one out",
                param=f"energy.{option}",
            )
    if name == "rejection" and energy.bound is None:
        raise RefusedRequest(
            400,
            "energy.bound: sampler rejection needs it, the largest log-weight that any text can have (for an energy "
            "that is never below E0 that is −E0); give it, or take sampler quasi-rejection",
            param="energy.bound",
        )
    given = {option: getattr(energy, option) for option in ("sampler", "power", *OPTIONS_OF_SAMPLERS)}
    return JointSampling(lookahead=lookahead, **{name: value for name, value in given.items() if value is not None})


def _proposals(energy: EnergyOptions, model: str, serving: Serving) -> int | None:
    has_energy = serving.services.chooser is not None or (
        serving.services.completer is not None and serving.services.completer.joint is not None
    )
    if not has_energy and energy.proposals not in (None, 1):
        raise RefusedRequest(
            400,
            "energy.proposals: this server has no energy to choose among candidates; leave it out",
            param="energy.proposals",
        )
    if not has_energy or energy.proposals == 1 or model == serving.services.name + BASE_SUFFIX:
        return None
    return energy.proposals or serving.services.proposals


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


async def _ask_models(task: CompletionTask, serving: Serving) -> tuple[str, Any, int]:
    """What the queue is asked for: the kind of work, its payload, its rows."""
    completer = serving.services.completer
    assert completer is not None

    def read() -> tuple[Context, ...]:
        contexts = tuple(completer.read(prompt) for prompt in task.prompts)
        for context in contexts:
            completer.check(context, max_new_tokens=task.max_new_tokens)
        return contexts

    task = replace(task, contexts=await asyncio.to_thread(read))
    travels_apart = task.is_chat and completer.for_chat is not completer
    return ("answer" if travels_apart else "complete"), task, task.rows


async def _ask_upstream(task: CompletionTask, serving: Serving) -> tuple[str, Any, int]:
    chooser, upstream = serving.services.chooser, serving.upstream
    assert chooser is not None and upstream is not None
    if not all(isinstance(prompt, str | tuple) for prompt in task.prompts):
        raise RefusedRequest(400, "prompt: with an upstream prompts are texts, not token ids", param="prompt")
    if task.logprobs is not None:
        raise RefusedRequest(400, "logprobs: not offered with an upstream; leave it out", param="logprobs")
    chooser.check_request(task)
    pools = await upstream.propose(task, logprobs=chooser.corrects(task))
    chooser.check_pools(task, pools)
    return "choose", (task, pools), len(pools) * proposals_of(task)


def chunks(answer: CompletionResponse, body: SamplingRequest) -> Iterator[CompletionResponse]:
    """The answer choice after choice, piece after piece."""
    head = answer.model_copy(update={"choices": [], "usage": None, "energylm": None})
    for choice in answer.choices:
        for piece, logprobs in _pieces(choice):
            part = CompletionChoice(text=piece, index=choice.index, logprobs=logprobs, finish_reason=None)
            yield head.model_copy(update={"choices": [part]})
        end = choice.model_copy(update={"text": "", "logprobs": None})
        yield head.model_copy(update={"choices": [end], "energylm": answer.energylm})
    if body.stream_options is not None and body.stream_options.include_usage:
        yield head.model_copy(update={"usage": answer.usage})


def streamed(parts: Iterable[SamplingResponse], response: Response) -> StreamingResponse:
    """Parts of an answer as server-sent events; what `response` tells about time is told here, too."""
    events = (f"data: {safe_json(part.model_dump(mode='json', exclude_unset=True))}\n\n" for part in parts)
    timing = {"server-timing": response.headers["server-timing"]}
    return StreamingResponse(chain(events, [END_OF_STREAM]), media_type="text/event-stream", headers=timing)


def _pieces(choice: CompletionChoice) -> list[tuple[str, LogProbs | None]]:
    """The text in words; where log-probabilities are told, in tokens, each with its own."""
    logprobs = choice.logprobs
    if logprobs is None:
        return [(word, None) for word in re.findall(r"\s*(?:\w+|[^\w\s]+)|\s+$", choice.text)]
    ends = pairwise([*logprobs.text_offset, len(choice.text)])
    return [(choice.text[start:stop], logprobs.part(i, i + 1)) for i, (start, stop) in enumerate(ends)]
