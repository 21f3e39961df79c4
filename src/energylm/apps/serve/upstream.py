"""Proposals of another OpenAI-style server, chosen among by our energy: what `energylm serve --upstream` answers with.

    w = exp(−E)                  target ∝ q · exp(−E)         q is how the upstream draws: nothing more need be known
    w = P_LM / q · exp(−E)       target ∝ P_LM · exp(−E)      with a language model of ours, where q is told

The second needs the upstream's log-probabilities, and that these are the proposal's own: they are told before
temperature and truncation, so both must be off. Where that fails the first is used, and the answer says so. P_LM reads
the text by its own tokenizer, one of the ways to write it; the end token is counted where the upstream stopped by
itself.

All texts of a request are asked for in one call where the upstream's n allows it (`upstream_n`), with the request's own
seed, so that a server of ours gives the very candidates that a local model would draw. Its failures become one line:
429 stays 429, a refusal of what was asked 400, silence 504, all else 502.

Relations  `completer` draws the candidates here; `samplers.resampling` holds weights and choice.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import torch
from torch import Tensor

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.completer import Candidate, Choice, Completion, cut_at_stop
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.joint_texts import CutText, JointTexts, lm_token_log_probs
from energylm.bundles.language_model import LanguageModel
from energylm.estimators.log_partition import TRUSTED_ESS
from energylm.numerics.importance import effective_sample_size, normalized_log_weights
from energylm.randomness import derive_seed, row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.resampling import Weights, importance_log_weights, resample

SHOWN_CHARACTERS = 200  # of what the upstream says
CALLS_AT_ONCE = 4


@dataclass(frozen=True)
class Proposal:
    """A candidate as the upstream told it."""

    text: str
    has_ended: bool  # by itself, not by a limit
    log_prob: float | None  # of the whole text; None where it is not told
    tokens: int  # as far as is known


@dataclass(frozen=True)
class ProposalPool:
    """The candidates of one text."""

    prompt: str
    proposals: tuple[Proposal, ...]
    weights: Weights
    is_untruncated: bool  # whether the upstream drew at temperature 1 from all tokens
    stop: tuple[str, ...]
    seed: int
    index: int


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


class ProposalChooser:
    def __init__(self, energy: EnergyModel, lm: LanguageModel | None = None) -> None:
        self.energy, self.lm = energy, lm
        self._texts = None if lm is None else JointTexts(lm)

    def choose(self, pools: Sequence[ProposalPool]) -> list[Completion]:
        """One text of each pool; the energies of all pools are read together."""
        texts = [pool.prompt + proposal.text for pool in pools for proposal in pool.proposals]
        sizes = [len(pool.proposals) for pool in pools]
        energies = torch.split(self.energy.text_energies(texts).double().cpu(), sizes)
        return [self._chosen(pool, energy_N) for pool, energy_N in zip(pools, energies, strict=True)]

    def _chosen(self, pool: ProposalPool, energy_N: Tensor) -> Completion:
        reason = self._why_not_corrected(pool)
        log_weight_N = -energy_N
        if pool.weights == "corrected" and reason is None:
            proposal_N = torch.tensor([one.log_prob for one in pool.proposals], dtype=torch.float64)
            log_weight_N = importance_log_weights(energy_N, self._log_prob(pool), proposal_N, weights="corrected")
        index_1 = torch.tensor([pool.index])
        keys_1 = row_keys(derive_seed(pool.seed, "resampling"), index_1, torch.zeros_like(index_1))
        kept = int(resample(log_weight_N[None], RowChoices(keys_1))[0, 0])
        proposal, ess = pool.proposals[kept], float(effective_sample_size(log_weight_N))
        text = cut_at_stop(proposal.text, pool.stop)
        has_ended = proposal.has_ended or len(text) < len(proposal.text)
        warnings = [reason] if pool.weights == "corrected" and reason is not None else []
        if len(energy_N) > 1 and ess < TRUSTED_ESS:
            warnings.append(f"the {len(energy_N)} candidates are worth {ess:.1f} independent ones; ask for more")
        choice = Choice(
            energy=float(energy_N[kept]),
            log_weight=float(log_weight_N[kept]),
            ess=ess,
            largest_share=float(normalized_log_weights(log_weight_N).exp().max()),
            warning="; ".join(warnings) or None,
            candidates=lambda: [
                Candidate(one.text, float(energy), float(log_weight))
                for one, energy, log_weight in zip(pool.proposals, energy_N, log_weight_N, strict=True)
            ],
        )
        return Completion(text, proposal.tokens, "stop" if has_ended else "length", None, choice)

    def _why_not_corrected(self, pool: ProposalPool) -> str | None:
        """Why P_LM / q is not known, in words; None if it is."""
        energy_alone = "weights are exp(−energy) alone, and the text's law is the upstream's under the energy"
        if self.lm is None:
            return f"there is no language model here to correct towards: {energy_alone}"
        if not pool.is_untruncated:
            return f"the upstream drew at a temperature or truncated, and tells nothing of that: {energy_alone}"
        if any(one.log_prob is None for one in pool.proposals):
            return f"the upstream tells no log-probabilities: {energy_alone}"
        return None

    def _log_prob(self, pool: ProposalPool) -> Tensor:
        """(N,) log P_LM of each candidate after the prompt."""
        assert self.lm is not None and self._texts is not None
        (context,) = self._texts.contexts([pool.prompt])
        cuts = []
        for one in pool.proposals:
            ids = self.lm.encode(one.text)
            ended = self.lm.codec.ended(ids) if one.has_ended and self.lm.eos_token_id is not None else ids
            cuts.append(CutText(context, ended, None))
        return lm_token_log_probs(self.lm, cuts).sum(1)
