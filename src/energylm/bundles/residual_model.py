"""A language model and an energy as one model of text: `energylm.ResidualModel`.

    P(x | c) = P_LM(x | c) · exp(−E(c, x)) / Z(c)                                     Deng et al. 2020, eq. 1 and 2

The language model stays as it is; the energy says how far it is wrong. Both may be models of this package, or anything
that satisfies `contracts.CausalModel` and `contracts.SequenceEnergy` (tables, networks of your own).

Contexts and texts are strings or lists of token ids. Lengths are fixed by default, as in the paper; where an
end-of-sequence token may come first, measures take `max_new_tokens` as the cap and sampling stops there by itself.

Relations  `residual_measures` measures, `residual_sampling` and `next_tokens` draw; the formulas are in `estimators`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self, TypeVar

from torch import Tensor

from energylm import contracts
from energylm.bundles.chat import Message
from energylm.bundles.compatibility import AnyEnergy, bound_energy, caution_about, end_caution, length_caution
from energylm.bundles.devices import Device, DType
from energylm.bundles.hub import OnHub
from energylm.bundles.joint_samplers import PoolRequest
from energylm.bundles.joint_texts import Context, JointTexts, longest_read
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import open_folder, save_model
from energylm.bundles.next_tokens import (
    AutoregressiveSample,
    NextTokenTable,
    TokenRequest,
    next_token_table,
    sample_by_tokens,
)
from energylm.bundles.residual_measures import (
    MeasuredPositions,
    MeasuredTexts,
    PerplexityBySamples,
    estimate_log_partition,
    measure_positions,
    measure_texts,
    score_texts,
)
from energylm.bundles.residual_sampling import JointSample, sample_joint, sample_requests
from energylm.bundles.text_codec import Text, Texts, as_list
from energylm.bundles.text_energy import Energy
from energylm.bundles.weighted_draws import WeightedDraws
from energylm.config.sampling import CONFIDENCE, LOOKAHEAD, MOVES, JointSampling, NextTokens, ParticleRuns
from energylm.config.vocabulary import MAX_NEW_TOKENS, PREFIX_TOKENS, N
from energylm.errors import ModelError
from energylm.estimators.joint_perplexity import JointPerplexity
from energylm.estimators.log_partition import LogPartition
from energylm.estimators.position_perplexity import PositionPerplexity
from energylm.progress import Progress, say
from energylm.samplers.continuations import MEMORY_BUDGET_BYTES

KIND = "residual-model"
LM_FOLDER, ENERGY_FOLDER = "language_model", "energy"
TokenResult = TypeVar("TokenResult", NextTokenTable, AutoregressiveSample)


class ResidualModel(OnHub):
    """`ResidualModel(lm, energy)`. What is doubtful about a result stands in its `warning`, beginning with what the
    caller knows against the pair (`caution`) and what their folders do: other weights than those the energy was trained
    against, another loss, shorter windows, texts that end, a calibration on few contexts. The first warning is said
    aloud."""

    def __init__(
        self,
        lm: contracts.CausalModel,
        energy: AnyEnergy,
        *,
        caution: str | None = None,
        memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    ) -> None:
        self.lm, self.energy = lm, energy
        self._texts = JointTexts(lm)
        self._draws = WeightedDraws(lm, bound_energy(energy, lm), memory_budget_bytes=memory_budget_bytes)
        self._known_caution = caution
        self._caution = "; ".join(filter(None, (caution, caution_about(energy, lm)))) or None
        self._has_warned = False

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: Device = None, dtype: DType = None) -> Self:
        """The joint model that `save_pretrained` wrote."""
        problem = "holds no residual model; give a folder that ResidualModel.save_pretrained wrote, or load both apart"
        location, _ = open_folder(folder, [KIND], problem)
        return cls.load(location / LM_FOLDER, location / ENERGY_FOLDER, device=device, dtype=dtype)

    @classmethod
    def load(
        cls,
        language_model: str | Path,
        energy: str | Path,
        *,
        beta: float | None = None,
        plain_text: bool = False,
        device: Device = None,
        dtype: DType = None,
    ) -> Self:
        """The joint model of a language model, a folder or a name, and an energy, as `Energy.load` takes it; with
        `plain_text` it writes no special tokens, as windows within documents hold none. `dtype` is the language
        model's: energies are differences of nats, which 16 bits do not hold."""
        lm = LanguageModel.from_pretrained(language_model, device=device, dtype=dtype)
        loaded = Energy.load(energy, beta=beta, device=device)
        return cls(lm.without_special_tokens() if plain_text else lm, loaded)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write both models into `folder`, each a folder that its own `from_pretrained` reads."""
        lm, energy = self.lm, self.energy
        if not isinstance(lm, LanguageModel) or not isinstance(energy, Energy):
            raise ModelError(
                f"a {type(lm).__name__} with a {type(energy).__name__} cannot be saved; wrap your networks in "
                "energylm.LanguageModel, and make the energy an energylm.Energy"
            )
        # The copy remembers what its weights are known as: written anew, their file may have another hash.
        provenance = lm.provenance | {"copied_weights": sorted(lm.weights_hashes)}
        copy = LanguageModel(lm.model, lm.tokenizer, name=lm.name, provenance=provenance)
        save_model(folder, kind=KIND, facts={}, provenance={}, parts={LM_FOLDER: copy, ENERGY_FOLDER: energy})

    def to(self, device: Device = None, dtype: DType = None, batch_tokens: int | None = None) -> Self:
        """The same pair, both parts moved; a part that is no network stays where it is."""
        for part in (self.lm, self.energy):
            if hasattr(part, "to"):
                part.to(device, dtype, batch_tokens)
        return self

    @property
    def _beta(self) -> float | None:
        """How strongly the energy weighs its score, where it says so."""
        return getattr(self.energy, "beta", None)

    def log_weights(
        self, texts: Texts, *, prefix_tokens: int = PREFIX_TOKENS, max_new_tokens: int | None = None
    ) -> Tensor:
        """(B,) the unnormalised log-probability log P_LM(x | c) − E(c, x) of each text after its prefix."""
        cut = self._texts.cut(texts, prefix_tokens=prefix_tokens, max_new_tokens=max_new_tokens)
        draws = self._draws.counting_afresh()
        lm_log_prob_B, energy_B = score_texts(draws, cut)
        self._tell(self.caution(longest_read(cut, max_new_tokens=max_new_tokens), draws.ended))
        return lm_log_prob_B - energy_B

    def log_partition(
        self,
        contexts: Texts,
        *,
        n: int = N,
        max_new_tokens: int,
        stop_at_eos: bool = False,
        seed: int = 0,
        first_context: int = 0,
    ) -> LogPartition:
        """log Z of each context from n untruncated samples. Context i has the random numbers of first_context + i."""
        given, draws = self._texts.contexts(contexts), self._draws.counting_afresh()
        estimate = estimate_log_partition(
            draws,
            given,
            n=n,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.lm.eos_token_id if stop_at_eos else None,
            seed=seed,
            first_context=first_context,
        )
        longest = max(len(context.energy) for context in given) + max_new_tokens
        estimate = replace(estimate, caution=self.caution(longest, draws.ended))
        self._tell(estimate.warning)
        return estimate

    def perplexity(
        self,
        texts: Texts,
        *,
        prefix_tokens: int = PREFIX_TOKENS,
        n: int = N,
        max_new_tokens: int | None = None,
        seed: int = 0,
        first_context: int = 0,
        confidence: float = CONFIDENCE,
        particles: ParticleRuns | None = None,
    ) -> JointPerplexity:
        """Base, joint interval and certified perplexity of what follows the first `prefix_tokens` of each text; the
        certified bound has `confidence` over the samples. With `max_new_tokens` texts vary in length: each ends with
        EOS, which is scored, or is cut at that many tokens; with `particles` log Z is that of runs of smc."""
        (result,) = self.perplexity_by_samples(
            texts,
            counts=[n],
            prefix_tokens=prefix_tokens,
            max_new_tokens=max_new_tokens,
            seed=seed,
            first_context=first_context,
            confidence=confidence,
            particles=particles,
        )
        return result

    def perplexity_by_samples(
        self,
        texts: Texts,
        *,
        counts: Sequence[int],
        prefix_tokens: int = PREFIX_TOKENS,
        max_new_tokens: int | None = None,
        seed: int = 0,
        first_context: int = 0,
        confidence: float = CONFIDENCE,
        particles: ParticleRuns | None = None,
    ) -> PerplexityBySamples:
        """The same for several numbers of samples, from one pool: the way the interval closes (fig. 2, left)."""
        texts, draws = as_list(texts), self._draws.counting_afresh()
        cut = self._texts.cut(texts, prefix_tokens=prefix_tokens, max_new_tokens=max_new_tokens)
        measured = measure_texts(
            draws,
            cut,
            counts=counts,
            max_new_tokens=max_new_tokens,
            seed=seed,
            first_context=first_context,
            particles=particles,
        )
        results = measured.perplexities(
            convention=self.convention(texts, prefix_tokens=prefix_tokens, max_new_tokens=max_new_tokens),
            caution=self.caution(longest_read(cut, max_new_tokens=max_new_tokens), draws.ended),
            confidence=confidence,
        )
        self._tell(max(results, key=lambda result: result.n).warning)
        return PerplexityBySamples(results)

    def measure(
        self,
        texts: Texts,
        *,
        counts: Sequence[int],
        prefix_tokens: int = PREFIX_TOKENS,
        max_new_tokens: int | None = None,
        seed: int = 0,
        first_context: int = 0,
        particles: ParticleRuns | None = None,
        progress: Progress | None = None,
    ) -> MeasuredTexts:
        """What `perplexity_by_samples` is made of, text by text, to be joined; `progress` counts the tokens drawn."""
        return measure_texts(
            self._draws,
            self._texts.cut(texts, prefix_tokens=prefix_tokens, max_new_tokens=max_new_tokens),
            counts=counts,
            max_new_tokens=max_new_tokens,
            seed=seed,
            first_context=first_context,
            particles=particles,
            within=progress,
        )

    def stepwise(
        self, texts: Texts, *, prefix_tokens: int = PREFIX_TOKENS, n: int = N, seed: int = 0
    ) -> PositionPerplexity:
        """Perplexity at each position of equally long texts (eq. 5), the last one also exactly."""
        texts, draws = as_list(texts), self._draws.counting_afresh()
        cut = self._texts.cut(texts, prefix_tokens=prefix_tokens, max_new_tokens=None)
        result = measure_positions(draws, cut, n=n, seed=seed).perplexity(
            first_position=prefix_tokens + 1,
            convention=self.convention(texts, prefix_tokens=prefix_tokens),
            caution=self.caution(longest_read(cut, max_new_tokens=None), draws.ended),
        )
        self._tell(result.warning)
        return result

    def measure_steps(
        self,
        texts: Texts,
        *,
        prefix_tokens: int = PREFIX_TOKENS,
        n: int = N,
        seed: int = 0,
        first_context: int = 0,
        progress: Progress | None = None,
    ) -> MeasuredPositions:
        """What `stepwise` is made of, as `measure` is for the whole."""
        cut = self._texts.cut(texts, prefix_tokens=prefix_tokens, max_new_tokens=None)
        return measure_positions(self._draws, cut, n=n, seed=seed, first_context=first_context, within=progress)

    def convention(self, texts: Texts, *, prefix_tokens: int = PREFIX_TOKENS, max_new_tokens: int | None = None) -> str:
        """What a score of such texts counts, in words."""
        return self._texts.convention(texts, prefix_tokens=prefix_tokens, max_new_tokens=max_new_tokens)

    def caution(self, tokens: int, ended: int = 0) -> str | None:
        """What is known against the pair on texts of up to `tokens` tokens, `ended` of which have an end-of-text token;
        without the latter, what is known before anything is drawn."""
        reasons = self._caution, length_caution(self.energy, tokens), end_caution(self.energy, ended)
        return "; ".join(filter(None, reasons)) or None

    def sample(
        self,
        context: Text | Context,
        *,
        n: int = N,
        max_new_tokens: int = MAX_NEW_TOKENS,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        weights: Literal["paper", "corrected"] = "paper",
        draws: int = 1,
        chunks: int = 1,
        context_tokens: int | None = None,
        stop_at_eos: bool = True,
        sampler: str = "resample",
        bound: float | None = None,
        moves: int = MOVES,
        block_tokens: int | None = None,
        power: float = 1.0,
        lookahead: str = LOOKAHEAD,
        seed: int = 0,
    ) -> JointSample:
        """A continuation of `context`; `config.sampling.JointSampling` says what each option does, and has more."""
        truncation = {"top_k": top_k, "top_p": top_p, "temperature": temperature}
        shape = {"n": n, "max_new_tokens": max_new_tokens, "truncation": truncation, "weights": weights}
        kept = {"draws": draws, "chunks": chunks, "context_tokens": context_tokens, "stop_at_eos": stop_at_eos}
        own = {"sampler": sampler, "bound": bound, "moves": moves, "block_tokens": block_tokens}
        values = {**shape, **kept, **own, "power": power, "lookahead": lookahead}
        options = JointSampling.checked(values, origin="joint sampling")
        given = [context] if isinstance(context, Context) else self._texts.contexts([context])
        return self._sampled(given, options, seed=seed, first_context=0)[0]

    def sample_batch(
        self, contexts: Texts, options: JointSampling, *, seed: int = 0, first_context: int = 0
    ) -> list[JointSample]:
        """A sample of each context; contexts travel together. Context i has the random numbers of first_context + i."""
        return self._sampled(self._texts.contexts(contexts), options, seed=seed, first_context=first_context)

    def _sampled(
        self, contexts: Sequence[Context], options: JointSampling, *, seed: int, first_context: int
    ) -> list[JointSample]:
        samples = sample_joint(
            self._draws,
            self._texts,
            contexts,
            options,
            seed=seed,
            first_context=first_context,
            beta=self._beta,
            caution=self.caution,
        )
        self._tell(next((sample.warning for sample in samples if sample.warning), None))
        return samples

    def sample_requests(
        self, requests: Sequence[PoolRequest], *, progress: Progress | None = None
    ) -> list[JointSample]:
        """A sample of each request, whose seed, limits and proposals are its own; they travel together. What is drawn
        for a request is what `sample_batch` draws for its context, seed and index."""
        return sample_requests(
            self._draws,
            self._texts,
            requests,
            window=getattr(getattr(self.lm, "model", self.lm), "max_length", None),
            beta=self._beta,
            caution=self.caution,
            bar=progress,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        n: int = N,
        max_new_tokens: int = MAX_NEW_TOKENS,
        top_k: int | None = None,
        top_p: float | None = None,
        temperature: float = 1.0,
        weights: Literal["paper", "corrected"] = "paper",
        draws: int = 1,
        seed: int = 0,
    ) -> JointSample:
        """An answer to a chat by algorithm 1 (`chat_batch`: by any sampler), after the language model's own template
        and up to its end of turn."""
        joint = self.for_chat()
        return joint.sample(
            joint._texts.chat(messages),
            n=n,
            max_new_tokens=max_new_tokens,
            top_k=top_k,
            top_p=top_p,
            temperature=temperature,
            weights=weights,
            draws=draws,
            seed=seed,
        )

    def chat_batch(
        self, chats: Sequence[Sequence[Message]], options: JointSampling, *, seed: int = 0, first_context: int = 0
    ) -> list[JointSample]:
        """An answer to each chat, as `sample_batch` continues texts."""
        joint = self.for_chat()
        contexts = [joint._texts.chat(messages) for messages in chats]
        return joint._sampled(contexts, options, seed=seed, first_context=first_context)

    def for_chat(self) -> "ResidualModel":
        """The same pair as a model of answers, which end with the template's end-of-turn token."""
        if not isinstance(self.lm, LanguageModel):
            raise ModelError("this language model has no tokenizer, so it reads no messages; pass token ids instead")
        lm = self.lm.for_chat()
        return self if lm is self.lm else ResidualModel(lm, self.energy, caution=self._known_caution)

    def next_token_table(
        self,
        context: Text,
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        candidates: int = 128,
        n: int = N,
        keep: int = 10,
        stop_at_eos: bool = True,
        seed: int = 0,
    ) -> NextTokenTable:
        """The likeliest first of `max_new_tokens` tokens, joint against base (app. A.1)."""
        options = NextTokens.checked({"candidates": candidates, "n": n, "keep": keep}, origin="next tokens")
        return self._by_tokens(next_token_table, context, TokenRequest(options, max_new_tokens, stop_at_eos, seed))

    def sample_autoregressive(
        self,
        context: Text,
        *,
        max_new_tokens: int = MAX_NEW_TOKENS,
        candidates: int = 128,
        n: int = N,
        keep: int = 10,
        stop_at_eos: bool = True,
        seed: int = 0,
    ) -> AutoregressiveSample:
        """A continuation token by token from such tables: candidates · n completions for each token, so slow."""
        options = NextTokens.checked({"candidates": candidates, "n": n, "keep": keep}, origin="next tokens")
        return self._by_tokens(sample_by_tokens, context, TokenRequest(options, max_new_tokens, stop_at_eos, seed))

    def _by_tokens(
        self,
        draw: Callable[[WeightedDraws, JointTexts, Context, TokenRequest], TokenResult],
        context: Text,
        request: TokenRequest,
    ) -> TokenResult:
        (given,), draws = self._texts.contexts([context]), self._draws.counting_afresh()
        result = draw(draws, self._texts, given, request)
        result = replace(result, caution=self.caution(len(given.energy) + request.max_new_tokens, draws.ended))
        self._tell(result.warning)
        return result

    def _tell(self, warning: str | None) -> None:
        """Say the first warning of this model to the person at the terminal."""
        if warning is not None and not self._has_warned:
            self._has_warned = True
            say(f"energylm: {warning}")
