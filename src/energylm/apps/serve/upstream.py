"""Proposals of another OpenAI-style server, chosen among by our energy: what `energylm serve --upstream` answers with.

    w = exp(−E)                  target ∝ q · exp(−E)         q is how the upstream draws: nothing more need be known
    w = P_LM / q · exp(−E)       target ∝ P_LM · exp(−E)      with a language model of ours, where q is told

The second (`corrected`) needs log q of whole texts, the end token included. What the upstream tells is one of two:

    raw          log P_upstream, before temperature and truncation: this is log q only where the request has neither
    processed    log q itself, after both; P_LM is then restricted to what the truncated upstream can write

A request whose weights would be biased is refused, not answered from another law. P_LM reads the text by its own
tokenizer, one of the ways to write it. Chats go to /chat/completions, where the upstream's own template reads them.

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
from energylm.apps.serve.completer import (
    ChosenText,
    CompletionTask,
    Prompt,
    candidate_facts,
    completion_response,
    finite,
)
from energylm.apps.serve.schemas import ChoiceFacts, CompletionResponse
from energylm.apps.serve.verb import RAW, UpstreamLogProbs
from energylm.bundles.chat import spoken_text
from energylm.bundles.energy_binding import Passage
from energylm.bundles.joint_texts import Context, CutText, JointTexts, lm_token_log_probs
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.text_energy import Energy
from energylm.estimators.log_partition import is_weak, shown_ess
from energylm.numerics.importance import effective_sample_size, normalized_log_weights
from energylm.randomness import derive_seed, row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.resampling import importance_log_weights, resample

SHOWN_CHARACTERS = 200  # of what the upstream says
CALLS_AT_ONCE = 4


@dataclass(frozen=True)
class Proposal:
    """A candidate as the upstream told it."""

    text: str
    has_ended: bool  # by itself, not by a limit
    log_prob: float | None  # of the whole text, and of its end where it has one; None where not all of it is told
    tokens: int  # as far as is known


Pool = tuple[Proposal, ...]  # the candidates of one text


def proposals_of(task: CompletionTask) -> int:
    """Candidates of each text; all greedy ones would be the same."""
    return 1 if task.temperature == 0 else task.proposals or 1


class Upstream:
    def __init__(
        self, url: str, *, model: str | None, key: str | None, n: int, seconds: float, at_once: int = 64
    ) -> None:
        self.url, self._model, self._n, self._seconds = url.rstrip("/"), model, n, seconds
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._client: httpx.AsyncClient | None = None
        self._free = at_once

    async def propose(self, task: CompletionTask, *, logprobs: bool) -> list[Pool]:
        """The proposals for each text; with their log-probabilities where the upstream tells them."""
        if self._free < 1:
            raise RefusedRequest(
                429, "too many requests wait for the upstream; try again later", headers={"retry-after": "1"}
            )
        self._free -= 1
        try:
            return await self._all(task, logprobs)
        finally:
            self._free += 1

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _all(self, task: CompletionTask, logprobs: bool) -> list[Pool]:
        size, prompts = proposals_of(task), task.prompt_of_each
        if task.is_chat:  # one a call: the draws of all its texts are copies
            prompts, asked = prompts[:1], size * task.n
        else:
            asked = size
        counts = [min(self._n, asked - first) for first in range(0, asked, self._n)]
        gate = asyncio.Semaphore(CALLS_AT_ONCE)

        async def part(number: int, count: int) -> list[list[Proposal]]:
            async with gate:
                body = {"model": await self._model_name(), "n": count, "seed": _seed(task.seed, number)}
                answer = await self._call(task, body | _parameters(task, prompts), logprobs)
                return _read(answer, prompts=len(prompts), count=count)

        parts = await asyncio.gather(*(part(number, count) for number, count in enumerate(counts)))
        by_prompt = [[proposal for of_call in parts for proposal in of_call[i]] for i in range(len(prompts))]
        return [tuple(drawn[first : first + size]) for drawn in by_prompt for first in range(0, asked, size)]

    async def _call(self, task: CompletionTask, body: dict[str, Any], logprobs: bool) -> Any:
        path, told = ("/chat/completions", True) if task.is_chat else ("/completions", 0)
        if logprobs:
            try:
                return await self._send("POST", path, {**body, "logprobs": told})
            except RefusedRequest as refused:
                if refused.status != 400:
                    raise  # else it may be the logprobs that it refuses
        return await self._send("POST", path, body)

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
        reason = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = f"status {response.status_code}"
    reason = " ".join(reason.split())[:SHOWN_CHARACTERS]
    if response.status_code == 429:
        seconds = response.headers.get("retry-after", "1")
        return RefusedRequest(
            429, f"the upstream is busy: {reason}", headers={"retry-after": seconds if seconds.isdigit() else "1"}
        )
    if response.status_code in (400, 413, 422):
        return RefusedRequest(400, f"the upstream refuses this: {reason}")
    if response.status_code in (401, 403):
        return RefusedRequest(502, "the upstream refuses the key it is given; set ENERGYLM_UPSTREAM_KEY")
    return RefusedRequest(502, f"the upstream fails: {reason}")


def _parameters(task: CompletionTask, prompts: Sequence[Prompt]) -> dict[str, Any]:
    (first, *others) = prompts
    what = {"messages": first} if task.is_chat else {"prompt": prompts if others else first}
    how = {"max_tokens": task.max_new_tokens, "temperature": task.temperature, "top_p": task.top_p}
    return what | how | ({} if task.top_k is None else {"top_k": task.top_k})


def _read(answer: Any, *, prompts: int, count: int) -> list[list[Proposal]]:
    """Proposals by prompt, from choices that are numbered prompt after prompt."""
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        proposals = [_proposal(choice) for choice in choices]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RefusedRequest(502, "the upstream's answer is no completion") from None
    if len(proposals) != prompts * count:
        raise RefusedRequest(502, f"the upstream gave {len(proposals)} texts where {prompts * count} were asked for")
    return [proposals[start : start + count] for start in range(0, len(proposals), count)]


def _proposal(choice: dict[str, Any]) -> Proposal:
    """Of a completion, or of a chat."""
    told = choice.get("logprobs") or {}
    if "message" in choice:
        text, rows = choice["message"]["content"], told.get("content") or []
        tokens, log_probs = [row["token"] for row in rows], [row["logprob"] for row in rows]
    else:
        text, tokens, log_probs = choice["text"], told.get("tokens") or [], told.get("token_logprobs") or []
    if not isinstance(text, str):
        raise TypeError
    has_ended = choice.get("finish_reason") == "stop"
    log_prob = _total(log_probs) if not has_ended or _tells_the_end(text, tokens) else None
    return Proposal(text, has_ended, log_prob, len(log_probs))


def _tells_the_end(text: str, tokens: Sequence[str]) -> bool:
    """Whether the last of the tokens is none of the text's own."""
    return bool(tokens) and (not tokens[-1] or not text.endswith(tokens[-1].strip()))


def _total(values: Sequence[Any]) -> float | None:
    """The log-probability of a text whose tokens all have one."""
    if not values or not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return None
    return math.fsum(values)


class ProposalChooser:
    """Chooses by an energy; with a language model, towards the joint model of the two. `told` is what the upstream's
    log-probabilities are."""

    def __init__(self, energy: Energy, lm: LanguageModel | None = None, *, told: UpstreamLogProbs = RAW) -> None:
        self.energy, self.lm, self._told = energy, lm, told
        self._texts = None if lm is None else JointTexts(lm)

    def corrects(self, task: CompletionTask) -> bool:
        """Whether the proposals of this request get weights P_LM / q; a single one needs none."""
        return task.weights == "corrected" and proposals_of(task) > 1

    def check_request(self, task: CompletionTask) -> None:
        """Refuse a request whose weights would be biased, or whose chat the language model here cannot read."""
        if not self.corrects(task):
            return
        if self.lm is None:
            raise _biased("this server has no language model to correct the upstream's proposals towards")
        if self._told == RAW and not task.truncation.is_identity:
            raise _biased(
                "the upstream tells log-probabilities before temperature and truncation, the proposal's own only at "
                "temperature 1 without top_p and top_k; ask so, or start with --upstream-logprobs processed if it does"
            )
        if task.is_chat:
            self._context(task.prompts[0])

    def check_pools(self, task: CompletionTask, pools: Sequence[Pool]) -> None:
        if self.corrects(task) and any(proposal.log_prob is None for pool in pools for proposal in pool):
            raise _biased(
                "the upstream does not tell the log-probability of every token, the end token included",
                status=502,
            )

    def choose(self, tasks: Sequence[tuple[CompletionTask, Sequence[Pool]]]) -> list[CompletionResponse]:
        """The answer to each task, of whose texts one of each pool; the energies of all pools are read together."""
        pools = [(prompt, pool) for task, of in tasks for prompt, pool in zip(task.prompt_of_each, of, strict=True)]
        passages = [_passage(prompt, proposal.text) for prompt, pool in pools for proposal in pool]
        energy_P = self.energy.passage_energies(passages).double().cpu()
        energies = iter(torch.split(energy_P, [len(pool) for _, pool in pools]))
        return [
            completion_response(
                task, [self._chosen(task, index, pool, next(energies)) for index, pool in enumerate(of)]
            )
            for task, of in tasks
        ]

    def _chosen(self, task: CompletionTask, index: int, pool: Pool, energy_N: Tensor) -> ChosenText:
        log_weight_N = -energy_N
        if self.corrects(task):
            proposal_N = torch.tensor([proposal.log_prob for proposal in pool], dtype=torch.float64)
            lm_N = self._log_prob(task.prompt_of_each[index], pool)
            log_weight_N = importance_log_weights(energy_N, lm_N, proposal_N, weights="corrected")
        index_1 = torch.tensor([index])
        keys_1 = row_keys(derive_seed(task.seed, "resampling"), index_1, torch.zeros_like(index_1))
        kept = int(resample(log_weight_N[None], RowChoices(keys_1))[0, 0])
        ess = float(effective_sample_size(log_weight_N))
        warning = None
        if len(energy_N) > 1 and is_weak(ess):
            warning = f"the {len(energy_N)} candidates are worth {shown_ess(ess)} independent ones; ask for more"
        facts = ChoiceFacts(
            energy=finite(energy_N[kept]),
            log_weight=finite(log_weight_N[kept]),
            ess=ess,
            largest_share=float(normalized_log_weights(log_weight_N).exp().max()),
            warning=warning,
        )
        candidates = candidate_facts([proposal.text for proposal in pool], energy_N, log_weight_N)
        return ChosenText(pool[kept].text, pool[kept].tokens, pool[kept].has_ended, facts, candidates)

    def _log_prob(self, prompt: Prompt, pool: Pool) -> Tensor:
        """(N,) log P_LM of each candidate after the prompt."""
        assert self.lm is not None
        context, lm = self._context(prompt), self.lm.for_chat() if isinstance(prompt, tuple) else self.lm
        cuts = []
        for proposal in pool:
            ids = lm.encode(proposal.text)
            ended = lm.codec.ended(ids) if proposal.has_ended and lm.eos_token_id is not None else ids
            cuts.append(CutText(context, ended, None))
        return lm_token_log_probs(lm, cuts).sum(1)

    def _context(self, prompt: Prompt) -> Context:
        assert self._texts is not None
        if isinstance(prompt, tuple):
            return self._texts.chat(prompt)
        (context,) = self._texts.contexts([prompt])
        return context


def _biased(reason: str, *, status: int = 400) -> RefusedRequest:
    cure = "ask with energy.weights 'paper' for the upstream's own law under the energy"
    return RefusedRequest(
        status, f"energy.weights 'corrected' would be biased: {reason}; {cure}", param="energy.weights"
    )


def _passage(prompt: Prompt, text: str) -> Passage:
    if isinstance(prompt, tuple):
        return Passage(text, prompt=spoken_text(prompt), messages=prompt)
    return Passage(text, prompt=str(prompt))
