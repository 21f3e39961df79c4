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

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from energylm import contracts
from energylm.apps.serve.schemas import (
    CandidateFacts,
    ChoiceFacts,
    CompletionChoice,
    CompletionFacts,
    CompletionResponse,
    LogProbs,
    Usage,
)
from energylm.bundles.batched_requests import DrawRequest, TokenAlternatives, draw_requests, token_alternatives
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.residual_sampling import JointSample, PoolRequest
from energylm.config.models import TOKENS
from energylm.config.sampling import JointSampling, Truncation
from energylm.errors import DataError
from energylm.progress import Progress
from energylm.samplers.resampling import Weights

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
    prompts: tuple[str | list[int], ...]
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

    @property
    def rows(self) -> int:
        """Continuations that are drawn."""
        return len(self.prompts) * self.n * (self.proposals or 1)

    @property
    def prompt_of_each(self) -> list[str]:
        """The prompt of each text, as text."""
        return [str(prompt) for prompt in self.prompts for _ in range(self.n)]

    @property
    def is_untruncated(self) -> bool:
        return self.temperature == 1 and self.top_p == 1 and self.top_k is None

    @property
    def truncation(self) -> Truncation:
        if self.temperature == 0:
            return Truncation(top_k=1)
        top_p = None if self.top_p == 1 else self.top_p
        return Truncation(top_k=self.top_k, top_p=top_p, temperature=self.temperature)


@dataclass(frozen=True)
class Written:
    """A text with what the answer tells of it as a whole."""

    choice: CompletionChoice
    tokens: int  # the end token counted
    candidates: list[CandidateFacts]  # where details are asked for; the first is the language model's own text


def completion_response(task: CompletionTask, texts: Sequence[Written]) -> CompletionResponse:
    """The answer to a request for these texts."""
    prompt_tokens, written = sum(len(context.energy) for context in task.contexts), sum(text.tokens for text in texts)
    first = texts[0].choice.energylm if texts else None
    facts: dict[str, Any] = {"seed": task.seed, "warning": first and first.warning}
    if task.details and first is None:
        facts |= {"candidates": [], "base": [text.choice.text for text in texts]}
    elif task.details and first is not None:
        facts |= {"candidates": texts[0].candidates, "ess": first.ess}
        facts |= {"base": [text.candidates[0].text for text in texts]}
    return CompletionResponse(
        id=f"cmpl-{secrets.token_hex(12)}",
        object="text_completion",
        created=int(time.time()),
        model=task.model,
        choices=[text.choice for text in texts],
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=written, total_tokens=prompt_tokens + written),
        energylm=CompletionFacts(**facts),
    )


class Completer:
    """A language model, alone or under an energy, that answers requests together. Not for several threads at once."""

    def __init__(self, model: contracts.CausalModel | ResidualModel, *, name: str) -> None:
        self.joint = model if isinstance(model, ResidualModel) else None
        self.lm = model.lm if isinstance(model, ResidualModel) else model
        self.name = name
        self._texts = JointTexts(self.lm)

    @property
    def window(self) -> int | None:
        """Tokens that prompt and text may take together."""
        energy = None if self.joint is None else self.joint.energy
        limits = [getattr(getattr(self.lm, "model", self.lm), "max_length", None)]
        if isinstance(energy, EnergyModel) and energy.reads == TOKENS:
            limits.append(energy.network.max_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    def read(self, prompt: str | Sequence[int]) -> Context:
        """A prompt as ids. May be called while another thread completes."""
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
        drawn: dict[int, list[Draw]] = {}
        for draw, is_joint in ((self._joint, True), (self._plain, False)):
            indices = [index for index, task in enumerate(tasks) if self._chooses(task) == is_joint]
            drawn |= zip(indices, draw([tasks[index] for index in indices], watch), strict=True)
        told = self._alternatives(tasks, [drawn[index] for index in range(len(tasks))])
        return [
            completion_response(
                task,
                [
                    self._written(task, number, *draw, None if task.logprobs is None else next(told))
                    for number, draw in enumerate(drawn[index])
                ],
            )
            for index, task in enumerate(tasks)
        ]

    def _chooses(self, task: CompletionTask) -> bool:
        return self.joint is not None and task.proposals is not None and task.truncation.top_k != 1

    def _joint(self, tasks: Sequence[CompletionTask], watch: Watch) -> list[list[Draw]]:
        if self.joint is None or not tasks:
            return []
        requests = [
            PoolRequest(context, _options(task), task.seed, number)
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

    def _alternatives(
        self, tasks: Sequence[CompletionTask], drawn: Sequence[Sequence[Draw]]
    ) -> Iterator[TokenAlternatives]:
        """What the language model gives to the tokens of the texts whose task asks for it, in order."""
        asked = [
            draw for task, of_task in zip(tasks, drawn, strict=True) for draw in of_task if task.logprobs is not None
        ]
        if not asked:
            return iter(())
        most = max(task.logprobs or 0 for task in tasks)
        contexts, tokens = [context.lm for context, _, _ in asked], [tokens for _, tokens, _ in asked]
        return iter(token_alternatives(self.lm, contexts, tokens, k=most))

    def _written(
        self,
        task: CompletionTask,
        index: int,
        context: Context,
        tokens: list[int],
        sample: JointSample | None,
        alternatives: TokenAlternatives | None,
    ) -> Written:
        whole = self._texts.new_text(context, tokens)
        text = cut_at_stop(whole, task.stop)
        has_ended = len(text) < len(whole) or tokens[-1] == self.lm.eos_token_id
        logprobs = None
        if alternatives is not None:
            logprobs = token_log_probs(
                self.lm, self._texts, context, tokens, alternatives, likeliest=task.logprobs or 0
            )
            logprobs = logprobs if text == whole else _before(logprobs, len(text))
        choice = CompletionChoice(
            text=text,
            index=index,
            logprobs=logprobs,
            finish_reason="stop" if has_ended else "length",
            energylm=None if sample is None else _choice_facts(sample),
        )
        return Written(choice, len(tokens), _candidates(sample) if task.details and sample is not None else [])


def _options(task: CompletionTask) -> JointSampling:
    return JointSampling(
        n=task.proposals or 2, max_new_tokens=task.max_new_tokens, truncation=task.truncation, weights=task.weights
    )


def _choice_facts(sample: JointSample) -> ChoiceFacts:
    (pool,) = sample.pools
    (kept,) = pool.kept
    return ChoiceFacts(
        energy=float(pool.energy[kept]),
        log_weight=float(pool.log_weight[kept]),
        ess=sample.ess,
        largest_share=sample.largest_share,
        warning=sample.warning,
    )


def _candidates(sample: JointSample) -> list[CandidateFacts]:
    return [
        CandidateFacts(text=text, energy=float(energy), log_weight=float(log_weight))
        for text, energy, log_weight in zip(sample.candidates, sample.energies, sample.log_weights, strict=True)
    ]


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


def _before(logprobs: LogProbs, end: int) -> LogProbs:
    """Of the tokens that begin before character `end`."""
    count = sum(offset < end for offset in logprobs.text_offset)
    return LogProbs(**{name: values[:count] for name, values in logprobs})


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
