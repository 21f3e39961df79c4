"""Continuations of prompts, drawn from a language model: `energylm lm sample`."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field

from energylm.config.base import listed
from energylm.config.sampling import Truncation
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.lm.score import LanguageModelName
from energylm.verbs.verb import Verb

if TYPE_CHECKING:
    from energylm.verbs.lm.texts import LMSamples


class SampleLM(Verb):
    """Continue prompts. A JSON line a sample: text, tokens, log-probability under the model and under the proposal.

    A right-to-left model writes what comes before the prompt.
    """

    examples = (
        'energylm lm sample smollm2-135m --prompt "The city council" -n 4 --top-k 10 --plain',
        "energylm lm sample runs/tiny/model -n 100 --max-new-tokens 40 --no-stop-at-eos --seed 7 > samples.jsonl",
    )
    shortcuts: ClassVar = {
        "top_k": "truncation.top_k",
        "top_p": "truncation.top_p",
        "temperature": "truncation.temperature",
    }
    apart_from: ClassVar[frozenset[str]] = frozenset({"plain"})

    language_model: LanguageModelName
    prompt: Annotated[tuple[str, ...], BeforeValidator(listed)] = Field(
        ("",), min_length=1, description="A text to continue; empty starts a new document."
    )
    n: int = Field(1, ge=1, description="Continuations of each prompt.")
    max_new_tokens: int = Field(40, ge=1, description="Tokens of a continuation at most.")
    stop_at_eos: bool = Field(
        True, description="End a continuation at the end-of-sequence token; no: exactly that many tokens."
    )
    truncation: Truncation = Field(Truncation(), description="How the proposal is narrowed.")
    seed: int = Field(0, ge=0, description="The same seed gives the same samples.")
    plain: bool = Field(False, description="Print prompt and continuation as text, not as JSON.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate

        return (
            f"would draw {self.n} × {self.max_new_tokens} tokens for each of {len(self.prompt)} prompts from "
            f"{locate(self.language_model)}"
        )

    def run(self, job: Job = DEFAULT_JOB) -> "LMSamples":
        self.check(job)

        from energylm.verbs.lm.texts import sample_texts

        return sample_texts(self, job)

    def shown(self, result: "LMSamples") -> str:
        return ""  # written while running
