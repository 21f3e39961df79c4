"""Proposals of another OpenAI-style server.

All texts of a request are asked for in one call where the upstream's n allows it (`upstream_n`), with the request's own
seed, so that a server of ours gives the very candidates that a local model would draw. Its failures become one line:
429 stays 429, a refusal of what was asked 400, silence 504, all else 502.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from energylm.pipelines.serve_proposals import Proposal
from energylm.randomness import derive_seed
from energylm.web.security import RefusedRequest

SHOWN_CHARACTERS = 200  # of what the upstream says
CALLS_AT_ONCE = 4


@dataclass(frozen=True)
class Wish:
    """What is asked of the upstream: so many proposals for each prompt."""

    prompts: tuple[str, ...]
    proposals: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    logprobs: bool


class Upstream:
    def __init__(
        self, url: str, *, model: str | None, key: str | None, n: int, seconds: float, at_once: int = 64
    ) -> None:
        self.url, self._model, self._n, self._seconds = url.rstrip("/"), model, n, seconds
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client: httpx.AsyncClient | None = None
        self._places = at_once

    async def propose(self, wish: Wish) -> list[tuple[Proposal, ...]]:
        """The proposals for each prompt."""
        if self._places < 1:
            raise RefusedRequest(
                429, "too many requests wait for the upstream; try again later", headers={"retry-after": "1"}
            )
        self._places -= 1
        try:
            return await self._all(wish)
        finally:
            self._places += 1

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _all(self, wish: Wish) -> list[tuple[Proposal, ...]]:
        counts = [min(self._n, wish.proposals - first) for first in range(0, wish.proposals, self._n)]
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def part(number: int, count: int) -> list[list[Proposal]]:
            async with gate:
                return await self._call(wish, count, seed=_seed(wish.seed, number))

        parts = await asyncio.gather(*(part(number, count) for number, count in enumerate(counts)))
        return [tuple(one for of_call in parts for one in of_call[place]) for place in range(len(wish.prompts))]

    async def _call(self, wish: Wish, count: int, *, seed: int) -> list[list[Proposal]]:
        body: dict[str, Any] = {
            "model": await self._model_name(),
            "prompt": wish.prompts[0] if len(wish.prompts) == 1 else list(wish.prompts),
            "n": count,
            "max_tokens": wish.max_tokens,
            "temperature": wish.temperature,
            "top_p": wish.top_p,
            "seed": seed,
        }
        if wish.top_k is not None:
            body["top_k"] = wish.top_k
        if wish.logprobs:
            try:
                answer = await self._send("POST", "/completions", {**body, "logprobs": 0})
            except RefusedRequest as refused:
                if refused.status != 400:
                    raise
                answer = await self._send("POST", "/completions", body)  # it may be the logprobs that it refuses
        else:
            answer = await self._send("POST", "/completions", body)
        return _read(answer, prompts=len(wish.prompts), count=count)

    async def _model_name(self) -> str:
        if self._model is None:
            try:
                self._model = str((await self._send("GET", "/models", None))["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise RefusedRequest(502, "the upstream names no model; start with --upstream-model") from None
        return self._model

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        if self._client is None:
            self._client = httpx.AsyncClient(headers=self._headers, timeout=self._seconds)
        try:
            response = await self._client.request(method, self.url + path, json=body)
            if response.status_code == 200:
                return response.json()
        except httpx.TimeoutException:
            raise RefusedRequest(504, f"the upstream did not answer within {self._seconds:g} seconds") from None
        except (httpx.HTTPError, ValueError) as error:
            raise RefusedRequest(502, f"the upstream cannot be read ({type(error).__name__})") from None
        raise _refusal(response)


def _seed(seed: int, number: int) -> int:
    """Of call `number`; the first has the request's own."""
    return derive_seed(seed, "upstream", number) >> 32 if number else seed


def _refusal(response: httpx.Response) -> RefusedRequest:
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = f"status {response.status_code}"
    said = " ".join(said.split())[:SHOWN_CHARACTERS]
    if response.status_code == 429:
        seconds = response.headers.get("retry-after", "1")
        return RefusedRequest(
            429, f"the upstream is busy: {said}", headers={"retry-after": seconds if seconds.isdigit() else "1"}
        )
    if response.status_code in (400, 413, 422):
        return RefusedRequest(400, f"the upstream refuses this: {said}")
    if response.status_code in (401, 403):
        return RefusedRequest(502, "the upstream refuses the key it is given; set ENERGYLM_UPSTREAM_KEY")
    return RefusedRequest(502, f"the upstream fails: {said}")


def _read(answer: Any, *, prompts: int, count: int) -> list[list[Proposal]]:
    """Proposals by prompt, from choices that are numbered prompt after prompt."""
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        found = [_proposal(choice) for choice in choices]
    except (KeyError, TypeError, ValueError):
        raise RefusedRequest(502, "the upstream's answer is no completion") from None
    if len(found) != prompts * count:
        raise RefusedRequest(502, f"the upstream gave {len(found)} texts where {prompts * count} were asked for")
    return [found[start : start + count] for start in range(0, len(found), count)]


def _proposal(choice: dict[str, Any]) -> Proposal:
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError
    values = (choice.get("logprobs") or {}).get("token_logprobs") or []
    return Proposal(text, has_ended=choice.get("finish_reason") == "stop", log_prob=_total(values), tokens=len(values))


def _total(values: Sequence[Any]) -> float | None:
    """The log-probability of a text whose tokens all have one."""
    if not values or not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return None
    return math.fsum(values)
