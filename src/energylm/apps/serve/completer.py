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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

from energylm import contracts
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.plain_sampling import DrawRequest, draw_requests
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.residual_results import JointSample
from energylm.bundles.residual_sampling import PoolRequest
from energylm.bundles.token_alternatives import TokenAlternatives, token_alternatives
from energylm.bundles.token_alternatives import TokenAlternatives as Thoughts
from energylm.config.energy import TOKENS
from energylm.config.generate import JointSampling
from energylm.config.sampling import Truncation
from energylm.errors import DataError
from energylm.progress import Progress
from energylm.samplers.resampling import Weights

FinishReason = Literal["stop", "length"]


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
    """One request, its prompts read already."""

    contexts: tuple[Context, ...]
    choices: int  # texts of each prompt
    max_new_tokens: int
    truncation: Truncation
    proposals: int | None  # candidates of each text; None: the language model alone
    weights: Weights
    stop: tuple[str, ...]
    seed: int
    logprobs: int | None  # how many of the likeliest tokens are told beside each token

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def rows(self) -> int:
        """Continuations that are drawn."""
        return len(self.contexts) * self.choices * (self.proposals or 1)


@dataclass(frozen=True)
class TokenLogProbs:
    """Under the untruncated model at temperature 1, in nats. The pieces add up to the text, but for the end token's:
    that is its name."""

    pieces: list[str]
    offsets: list[int]
    log_probs: list[float]
    likeliest: list[dict[str, float]]

    def before(self, end: int) -> "TokenLogProbs":
        """Of the tokens that begin before character `end`."""
        count = sum(offset < end for offset in self.offsets)
        return TokenLogProbs(self.pieces[:count], self.offsets[:count], self.log_probs[:count], self.likeliest[:count])


@dataclass(frozen=True)
class Candidate:
    text: str
    energy: float
    log_weight: float


@dataclass(frozen=True)
class Choice:
    """How a text was chosen among its candidates."""

    energy: float
    log_weight: float
    ess: float
    largest_share: float
    warning: str | None
    candidates: Callable[[], list[Candidate]]  # as text, the first is what the language model alone would have said


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int  # the end token counted
    finish_reason: FinishReason
    logprobs: TokenLogProbs | None
    choice: Choice | None  # None without an energy


class Completer:
    """A language model, alone or under an energy, that answers requests together. Not for several threads at once."""

    def __init__(self, model: contracts.LanguageModel | ResidualModel, *, name: str) -> None:
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
    ) -> list[list[Completion]]:
        """The texts of each task, prompt after prompt; `is_wanted` is asked while they are drawn."""
        watch = Watch(is_wanted)
        found: dict[int, list[_Written]] = {}
        for answer, is_joint in ((self._joint, True), (self._plain, False)):
            places = [place for place, task in enumerate(tasks) if self._chooses(task) == is_joint]
            found |= zip(places, answer([tasks[place] for place in places], watch), strict=True)
        written = [found[place] for place in range(len(tasks))]
        thoughts = self._thoughts(tasks, written)
        return [
            [self._completion(task, one, next(thoughts) if task.wants_logprobs else None) for one in of_task]
            for task, of_task in zip(tasks, written, strict=True)
        ]

    def _chooses(self, task: CompletionTask) -> bool:
        return self.joint is not None and task.proposals is not None and task.truncation.top_k != 1

    def _joint(self, tasks: Sequence[CompletionTask], watch: Watch) -> list[list["_Written"]]:
        if self.joint is None or not tasks:
            return []
        requests = [
            PoolRequest(context, _options(task), task.seed, number)
            for task in tasks
            for number, context in enumerate(context for context in task.contexts for _ in range(task.choices))
        ]
        samples = iter(self.joint.sample_requests(requests, progress=watch))
        return [
            [
                _Written(context, sample.tokens[0], _choice(sample))
                for context in task.contexts
                for sample in islice(samples, task.choices)
            ]
            for task in tasks
        ]

    def _plain(self, tasks: Sequence[CompletionTask], watch: Watch) -> list[list["_Written"]]:
        requests = [
            DrawRequest(context.lm, task.choices, task.max_new_tokens, task.truncation, task.seed, number)
            for task in tasks
            for number, context in enumerate(task.contexts)
        ]
        drawn = iter(draw_requests(self.lm, requests, progress=watch))
        found = []
        for task in tasks:
            of_task = []
            for context in task.contexts:
                one = next(drawn)
                rows = zip(one.tokens[0].tolist(), one.lengths[0].tolist(), strict=True)
                of_task += [_Written(context, tokens[:length], None) for tokens, length in rows]
            found.append(of_task)
        return found

    def _thoughts(self, tasks: Sequence[CompletionTask], written: Sequence[list["_Written"]]) -> Iterator[Thoughts]:
        """What the language model thought of the tokens of the texts whose task asks for it, in order."""
        asked = [one for task, of_task in zip(tasks, written, strict=True) for one in of_task if task.wants_logprobs]
        if not asked:
            return iter(())
        most = max(task.logprobs or 0 for task in tasks)
        contexts, tokens = [one.context.lm for one in asked], [one.tokens for one in asked]
        return iter(token_alternatives(self.lm, contexts, tokens, k=most))

    def _completion(self, task: CompletionTask, one: "_Written", thoughts: Thoughts | None) -> Completion:
        whole = self._texts.new_text(one.context, one.tokens)
        text = cut_at_stop(whole, task.stop)
        has_ended = len(text) < len(whole) or one.tokens[-1] == self.lm.eos_token_id
        logprobs = None
        if thoughts is not None:
            told = token_log_probs(
                self.lm, self._texts, one.context, one.tokens, thoughts, likeliest=task.logprobs or 0
            )
            logprobs = told if text == whole else told.before(len(text))
        return Completion(text, len(one.tokens), "stop" if has_ended else "length", logprobs, one.choice)


@dataclass(frozen=True)
class _Written:
    context: Context
    tokens: list[int]
    choice: Choice | None


def _options(task: CompletionTask) -> JointSampling:
    return JointSampling(
        n=task.proposals or 2, max_new_tokens=task.max_new_tokens, truncation=task.truncation, weights=task.weights
    )


def _choice(sample: JointSample) -> Choice:
    (pool,) = sample.pools
    (kept,) = pool.kept
    return Choice(
        energy=float(pool.energy[kept]),
        log_weight=float(pool.log_weight[kept]),
        ess=sample.ess,
        largest_share=sample.largest_share,
        warning=sample.warning,
        candidates=lambda: [
            Candidate(text, float(energy), float(log_weight))
            for text, energy, log_weight in zip(sample.candidates, pool.energy, pool.log_weight, strict=True)
        ],
    )


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to where the first of the stop strings begins."""
    places = [place for place in (text.find(one) for one in stop) if place >= 0]
    return text[: min(places, default=len(text))]


def token_log_probs(
    lm: contracts.LanguageModel,
    texts: JointTexts,
    context: Context,
    tokens: list[int],
    thoughts: TokenAlternatives,
    *,
    likeliest: int,
) -> TokenLogProbs:
    """What `thoughts` say of `tokens` after `context`, with so many of the likeliest tokens beside each."""
    whole, ends = texts.new_text(context, tokens), [0]
    for count in range(1, len(tokens) + 1):
        so_far = texts.new_text(context, tokens[:count])
        ends.append(max(len(so_far), ends[-1]) if whole.startswith(so_far) else ends[-1])
    pieces = [whole[start:stop] for start, stop in pairwise(ends)]
    if tokens[-1] == lm.eos_token_id:
        pieces[-1] = _name(lm, tokens[-1])
    names = [_named(lm, of_token[:likeliest]) for of_token in thoughts.likeliest]
    return TokenLogProbs(pieces, ends[:-1], thoughts.log_probs, names)


def _named(lm: contracts.LanguageModel, likeliest: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Ids by what they write; of two that look the same the likelier stays."""
    names: dict[str, float] = {}
    for token, log_prob in likeliest:
        names.setdefault(_name(lm, token), log_prob)
    return names


def _name(lm: contracts.LanguageModel, token: int) -> str:
    """What a token writes; the name in the vocabulary of one that writes nothing by itself."""
    if not isinstance(lm, LanguageModel):
        return str(token)
    written = lm.decode([token])
    return written if written and "\ufffd" not in written else str(lm.tokenizer.convert_ids_to_tokens(token))
