"""Log-probabilities and perplexity of texts, or of windows of a long one: `energylm lm score`."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.lm.texts import LMScores


LanguageModelName = Annotated[
    str,
    Positional("LM"),
    Field(
        description="A model's or run's folder, a GGUF file, a known model (`energylm models list`), OWNER/NAME of the "
        "hub."
    ),
]


class ScoreLM(Verb):
    """Print a JSON line a text (log-probability, perplexity, bits per byte); the total, with its convention, on stderr.

    Lines appear as soon as they are known, in the order of the file.
    """

    examples = (
        "energylm lm score smollm2-135m sentences.txt",
        "energylm lm score runs/tiny/model news.jsonl --field text --eos --json scores.json",
        "energylm lm score smollm2-135m book.txt --windows 20 --length 160 --prefix-tokens 120",
        'echo "A text to score." | energylm lm score smollm2-135m -',
    )
    apart_from: ClassVar[frozenset[str]] = frozenset({"per_token"})

    language_model: LanguageModelName
    source: Annotated[str, Positional("FILE|-")] = Field(
        "-", description="A text a line, or JSONL or TSV by its ending; - is standard input."
    )
    field: str = Field("text", description="JSONL field or TSV column that holds the text.")
    windows: int | None = Field(
        None, ge=1, description="Score this many evenly spaced windows of the whole file instead; none = its texts."
    )
    length: int = Field(160, ge=1, description="Tokens of a window.")
    prefix_tokens: int = Field(0, ge=0, description="Tokens of each text or window that are given and not scored.")
    eos: bool = Field(False, description="Score and count the end-of-sequence token too.")
    per_token: bool = Field(False, description="Print each token's log-probability too; the JSON file has them anyway.")

    @model_validator(mode="after")
    def _leave_something_to_score(self) -> Self:
        if self.windows is not None and self.prefix_tokens >= self.length:
            raise ValueError(
                f"prefix_tokens {self.prefix_tokens} leaves nothing of length {self.length} to score; lower it"
            )
        return self

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.known_models import locate
        from energylm.data.text_files import STDIN, existing

        existing(self.source)
        what = f"{self.windows} windows of {self.length} tokens" if self.windows else "every text"
        where = "standard input" if self.source == STDIN else self.source
        return f"would score {what} of {where} with {locate(self.language_model)}"

    def run(self, job: Job = DEFAULT_JOB) -> "LMScores":
        self.check(job)

        from energylm.verbs.lm.texts import score_texts

        return score_texts(self, job)

    def shown(self, result: "LMScores") -> str:
        return ""  # each line was written as soon as it was known
