"""Texts for many requests at once: what `/v1/completions` answers with.

With an energy every text is a draw of algorithm 1 from a pool of its own (Deng et al. 2020), so that the n texts of a
request are independent; without one the language model is sampled as it is. A request's texts depend on its own seed
only: text number i of a request has the random numbers that `ResidualModel.sample_batch([prompt] * n, seed=…)` gives
number i (without an energy: copy i of `LanguageModel.sample(prompts, n=n, seed=…)`).

A stop string cuts the chosen text: the energy has judged candidates in full, so what comes is the joint model's text up
to the stop. Temperature 0 leaves one candidate, the greedy one, and nothing to choose.

Log-probabilities are told of pieces of text. Some tokens write half a character: their piece is empty, and the token
that completes the character has it.

Relations  `upstream` does the same with candidates of another server.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import Literal

from torch import Tensor

from energylm import contracts
from energylm.apps.serve.schemas import (
    CandidateFacts,
    ChoiceFacts,
    CompletionChoice,
    CompletionFacts,
    CompletionResponse,
    LogProbs,
    SamplerFacts,
    Usage,
)
from energylm.bundles.batched_requests import DrawRequest, TokenAlternatives, draw_requests, token_alternatives
from energylm.bundles.chat import Message
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.joint_samplers import CHOICES, PoolRequest
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.residual_sampling import JointSample, tokens_of_a_candidate
from energylm.bundles.weighted_draws import SamplerReport
from energylm.config.models import TOKENS
from energylm.config.sampling import JointSampling, Truncation
from energylm.errors import DataError, ModelError
from energylm.progress import Progress
from energylm.samplers.resampling import Weights

Chat = tuple[Message, ...]
Prompt = str | list[int] | Chat
Draw = tuple[Context, list[int], JointSample | None]  # a prompt, the tokens of a text, and what they were chosen among


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


class Watch(Progress):
    """Lets the draw loop end as soon as nobody waits: it is asked after every step."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        super().__init__("answering", total=None, unit="token")
        self._is_wanted = is_wanted

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        if not self._is_wanted():
            raise Abandoned


@dataclass(frozen=True)
class CompletionTask:
    """A request with its defaults filled in, inside the server's limits."""

    model: str
    prompts: tuple[Prompt, ...]
    n: int  # texts of each prompt
    max_new_tokens: int
    temperature: float  # 0: greedy
    top_p: float
    top_k: int | None
    proposals: int | None  # candidates of each text; None: the language model alone
    weights: Weights
    stop: tuple[str, ...]
    seed: int
    logprobs: int | None  # how many of the likeliest tokens are told beside each token
    details: bool
    contexts: tuple[Context, ...] = ()  # the prompts, once they are read
    sampler: JointSampling = field(default_factory=JointSampling)  # of which only its own options are read

    @property
    def tokens_drawn(self) -> int:
        """At most; a chain of the sampler suffix writes its text anew with every move."""
        of_each = self.max_new_tokens if self.proposals is None else tokens_of_a_candidate(self.joint_sampling)
        return len(self.prompts) * self.n * (self.proposals or 1) * of_each

    @property
    def rows(self) -> int:
        """Continuations that are drawn: whole ones, of as many tokens."""
        return -(-self.tokens_drawn // self.max_new_tokens)

    @property
    def prompt_of_each(self) -> list[Prompt]:
        """The prompt of each text."""
        return [prompt for prompt in self.prompts for _ in range(self.n)]

    @property
    def is_chat(self) -> bool:
        return isinstance(self.prompts[0], tuple)

    @property
    def truncation(self) -> Truncation:
        if self.temperature == 0:
            return Truncation(top_k=1)
        top_p = None if self.top_p == 1 else self.top_p
        return Truncation(top_k=self.top_k, top_p=top_p, temperature=self.temperature)

    @property
    def joint_sampling(self) -> JointSampling:
        shape = {"n": self.proposals or 2, "max_new_tokens": self.max_new_tokens}
        return self.sampler.model_copy(update={**shape, "truncation": self.truncation, "weights": self.weights})


@dataclass(frozen=True)
class ChosenText:
    """A text that answers a request, whole: a stop string may cut it."""

    text: str
    tokens: int  # the end token counted
    has_ended: bool
    facts: ChoiceFacts | None = None  # None where there was nothing to choose
    candidates: Sequence[CandidateFacts] = ()  # where details are asked for; the first is the language model's own text
    logprobs: LogProbs | None = None


def completion_response(task: CompletionTask, texts: Sequence[ChosenText]) -> CompletionResponse:
    """The answer to a request for these texts."""
    prompt_tokens = sum(len(context.energy) for context in task.contexts)
    written = sum(text.tokens for text in texts)
    choices = [_choice(task, index, text) for index, text in enumerate(texts)]
    first = texts[0].facts if texts else None
    facts = CompletionFacts(seed=task.seed, warning=None if first is None else first.warning)
    if task.details:
        base = [
            text.candidates[0].text if text.candidates else choice.text
            for text, choice in zip(texts, choices, strict=True)
        ]
        candidates = list(texts[0].candidates) if texts else []
        ess = {} if first is None else {"ess": first.ess}
        # Chains and particles are led by the energy: none of them is a text of the language model itself.
        is_led = first is not None and first.report is not None and first.report.sampler not in CHOICES
        own = {} if is_led else {"base": base}
        facts = facts.model_copy(update={"candidates": candidates} | ess | own)
    return CompletionResponse(
        id=f"cmpl-{secrets.token_hex(12)}",
        object="text_completion",
        created=int(time.time()),
        model=task.model,
        choices=choices,
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=written, total_tokens=prompt_tokens + written),
        energylm=facts,
    )


def _choice(task: CompletionTask, index: int, chosen: ChosenText) -> CompletionChoice:
    text, logprobs = cut_at_stop(chosen.text, task.stop), chosen.logprobs
    is_cut = len(text) < len(chosen.text)
    if is_cut and logprobs is not None:  # of the tokens that begin before the stop
        logprobs = logprobs.part(0, sum(offset < len(text) for offset in logprobs.text_offset))
    finish_reason: Literal["stop", "length"] = "stop" if is_cut or chosen.has_ended else "length"
    return CompletionChoice(
        text=text, index=index, logprobs=logprobs, finish_reason=finish_reason, energylm=chosen.facts
    )


def candidate_facts(texts: Iterable[str], energy_N: Tensor, log_weight_N: Tensor) -> list[CandidateFacts]:
    return [
        CandidateFacts(text=text, energy=finite(energy), log_weight=finite(log_weight))
        for text, energy, log_weight in zip(texts, energy_N, log_weight_N, strict=True)
    ]


def finite(value: Tensor) -> float | None:
    """As JSON can say it: a text that the energy forbids has neither energy nor weight."""
    return float(value) if bool(value.isfinite()) else None


def sampler_facts(report: SamplerReport) -> SamplerFacts:
    told = {name: getattr(report, name) for name in SamplerFacts.model_fields}
    numbers = {name: _known(told[name]) for name in ("acceptance", "distance", "log_partition")}
    return SamplerFacts(**(told | numbers))


def _known(value: float | None) -> float | None:
    """As JSON can say it: chains that are too short, or never move, are worth nobody knows what."""
    return None if value is None or not math.isfinite(value) else value


class Completer:
    """A language model, alone or under an energy, that answers requests together. Not for several threads at once."""

    def __init__(self, model: contracts.CausalModel | ResidualModel) -> None:
        self.joint = model if isinstance(model, ResidualModel) else None
        self.lm = model.lm if isinstance(model, ResidualModel) else model
        self._texts = JointTexts(self.lm)

    @cached_property
    def for_chat(self) -> "Completer":
        """The same models as writers of answers, which end with the chat template's end-of-turn token."""
        model = self.joint or self.lm
        if not isinstance(model, LanguageModel | ResidualModel):
            raise ModelError(
                "this language model has no tokenizer, so it reads no messages; complete token ids instead"
            )
        answering = model.for_chat()
        return self if answering is model else Completer(answering)

    @property
    def window(self) -> int | None:
        """Tokens that prompt and text may take together."""
        energy = None if self.joint is None else self.joint.energy
        limits = [getattr(getattr(self.lm, "model", self.lm), "max_length", None)]
        if isinstance(energy, EnergyModel) and energy.reads == TOKENS:
            limits.append(energy.network.max_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    def read(self, prompt: Prompt) -> Context:
        """A prompt as ids, a chat by the model's template. May be called while another thread completes."""
        if isinstance(prompt, tuple):
            return self._texts.chat(prompt)
        if not isinstance(prompt, str):
            unknown = next((token for token in prompt if not 0 <= token < self.lm.vocabulary_size), None)
            if unknown is not None:
                raise DataError(f"token id {unknown} came but the model knows 0 to {self.lm.vocabulary_size - 1}")
        (context,) = self._texts.contexts([prompt])
        if not context.lm and isinstance(self.lm, LanguageModel):
            raise DataError("the prompt is empty and this model has no start token; give at least one token")
        return context

    def check(self, context: Context, *, max_new_tokens: int) -> None:
        """Whether the models hold the prompt and so many tokens more."""
        taken = len(context.lm) + max_new_tokens
        if self.window is not None and taken > self.window:
            raise DataError(
                f"prompt and max_tokens take {taken:,} tokens ({len(context.lm):,} of the prompt) but the model holds "
                f"{self.window:,}; shorten the prompt or ask for fewer tokens"
            )

    def complete(
        self, tasks: Sequence[CompletionTask], *, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[CompletionResponse]:
        """The answer to each task, its texts prompt after prompt; `is_wanted` is asked while they are drawn."""
        watch = Watch(is_wanted)
        by_task: dict[int, list[Draw]] = {}
        for draw, is_joint in ((self._joint, True), (self._plain, False)):
            indices = [index for index, task in enumerate(tasks) if self._chooses(task) == is_joint]
            by_task |= zip(indices, draw([tasks[index] for index in indices], watch), strict=True)
        drawn = [(task, draw) for index, task in enumerate(tasks) for draw in by_task[index]]
        alternatives = self._alternatives([draw for draw in drawn if draw[0].logprobs is not None])
        texts = iter([self._chosen(*draw, None if draw[0].logprobs is None else next(alternatives)) for draw in drawn])
        return [completion_response(task, list(islice(texts, len(by_task[index])))) for index, task in enumerate(tasks)]

    def _chooses(self, task: CompletionTask) -> bool:
        return self.joint is not None and task.proposals is not None and task.truncation.top_k != 1

    def _joint(self, tasks: Sequence[CompletionTask], watch: Watch) -> list[list[Draw]]:
        if self.joint is None or not tasks:
            return []
        requests = [
            PoolRequest(context, task.joint_sampling, task.seed, number)
            for task in tasks
            for number, context in enumerate(context for context in task.contexts for _ in range(task.n))
        ]
        samples = iter(self.joint.sample_requests(requests, progress=watch))
        return [
            [(context, sample.tokens[0], sample) for context in task.contexts for sample in islice(samples, task.n)]
            for task in tasks
        ]

    def _plain(self, tasks: Sequence[CompletionTask], watch: Watch) -> list[list[Draw]]:
        requests = [
            DrawRequest(context.lm, task.n, task.max_new_tokens, task.truncation, task.seed, number)
            for task in tasks
            for number, context in enumerate(task.contexts)
        ]
        drawn = iter(draw_requests(self.lm, requests, progress=watch))
        of_tasks: list[list[Draw]] = []
        for task in tasks:
            of_tasks.append([])
            for context, continuations in zip(task.contexts, islice(drawn, len(task.contexts)), strict=True):
                rows = zip(continuations.tokens[0].tolist(), continuations.lengths[0].tolist(), strict=True)
                of_tasks[-1] += [(context, tokens[:length], None) for tokens, length in rows]
        return of_tasks

    def _alternatives(self, drawn: Sequence[tuple[CompletionTask, Draw]]) -> Iterator[TokenAlternatives]:
        """What the language model gives to the tokens of each text."""
        if not drawn:
            return iter(())
        contexts, tokens = [context.lm for _, (context, _, _) in drawn], [tokens for _, (_, tokens, _) in drawn]
        return iter(token_alternatives(self.lm, contexts, tokens, k=max(task.logprobs or 0 for task, _ in drawn)))

    def _chosen(self, task: CompletionTask, draw: Draw, alternatives: TokenAlternatives | None) -> ChosenText:
        context, tokens, sample = draw
        logprobs = None
        if alternatives is not None:
            likeliest = task.logprobs or 0
            logprobs = token_log_probs(self.lm, self._texts, context, tokens, alternatives, likeliest=likeliest)
        text, has_ended = self._texts.new_text(context, tokens), tokens[-1] == self.lm.eos_token_id
        if sample is None:
            return ChosenText(text, len(tokens), has_ended, logprobs=logprobs)
        (pool,) = sample.pools
        (kept,) = pool.kept
        facts = ChoiceFacts(
            energy=finite(pool.energy[kept]),
            log_weight=finite(pool.log_weight[kept]),
            ess=_known(sample.report.effective),
            largest_share=sample.largest_share,
            warning=sample.warning,
            **({} if sample.report.sampler == "resample" else {"report": sampler_facts(sample.report)}),
        )
        candidates = candidate_facts(sample.candidates, sample.energies, sample.log_weights) if task.details else []
        return ChosenText(text, len(tokens), has_ended, facts, candidates, logprobs)


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to where the first of the stop strings begins."""
    starts = [start for start in (text.find(string) for string in stop) if start >= 0]
    return text[: min(starts, default=len(text))]


def token_log_probs(
    lm: contracts.CausalModel,
    texts: JointTexts,
    context: Context,
    tokens: list[int],
    alternatives: TokenAlternatives,
    *,
    likeliest: int,
) -> LogProbs:
    """Of `tokens` after `context`, with so many of the likeliest tokens beside each: under the untruncated model at
    temperature 1, in nats. The pieces add up to the text, but for the end token's: that is its name."""
    whole, ends = texts.new_text(context, tokens), [0]
    for count in range(1, len(tokens) + 1):
        so_far = texts.new_text(context, tokens[:count])
        ends.append(max(len(so_far), ends[-1]) if whole.startswith(so_far) else ends[-1])
    pieces = [whole[start:stop] for start, stop in pairwise(ends)]
    if tokens[-1] == lm.eos_token_id:
        pieces[-1] = _name(lm, tokens[-1])
    names = [_named(lm, of_token[:likeliest]) for of_token in alternatives.likeliest]
    return LogProbs(tokens=pieces, token_logprobs=alternatives.log_probs, top_logprobs=names, text_offset=ends[:-1])


def _named(lm: contracts.CausalModel, likeliest: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Ids by what they write; of two that look the same the likelier stays."""
    names: dict[str, float] = {}
    for token, log_prob in likeliest:
        names.setdefault(_name(lm, token), log_prob)
    return names


def _name(lm: contracts.CausalModel, token: int) -> str:
    """What a token writes; the name in the vocabulary of one that writes nothing by itself."""
    if not isinstance(lm, LanguageModel):
        return str(token)
    written = lm.decode([token])
    return written if written and "\ufffd" not in written else str(lm.tokenizer.convert_ids_to_tokens(token))
