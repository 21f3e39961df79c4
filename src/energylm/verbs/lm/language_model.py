"""A language model from a corpus, texts that it scores, texts that it writes: `energylm lm train`, `score`, `sample`.

`working` does it.
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from energylm.config.base import Strings
from energylm.config.pretrain import LanguageModelSettings
from energylm.config.sampling import Truncation
from energylm.config.vocabulary import MAX_NEW_TOKENS, N_TEXTS, PREFIX_TOKENS, WINDOW_TOKENS
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.verb import Flag, Positional, Verb

if TYPE_CHECKING:
    from energylm.jobs.costs import Counted, Surroundings
    from energylm.verbs.lm.working import LMRun, LMSamples, LMScores

LanguageModelName = Annotated[
    str,
    Positional("LM"),
    Field(
        description="A model's or run's folder, a GGUF file, a known model (`energylm models list`), OWNER/NAME of the "
        "hub."
    ),
]


class TrainLM(Verb, LanguageModelSettings):
    """Train a language model. Killed runs go on where they stopped when run again; finished ones are not repeated.

    The model is the subfolder model of the output. The published settings are presets of the training: --set
    training.preset=deng2020/base-lm. Several processes: torchrun --nproc_per_node 2 -m energylm lm train …
    """

    examples = (
        "energylm lm train corpora/sotu --output runs/tiny --preset tiny --steps 1000",
        "energylm lm train corpora/news --output runs/r2l --direction right-to-left --set training.micro_batch=8",
        "energylm lm train corpora/news --output runs/ralm --kind ralm --base runs/tiny/model --preset tiny",
        "energylm lm train corpora/books --output runs/base --preset big --set training.preset=deng2020/base-lm "
        "--dry-run",
        "energylm lm train corpora/spoken --output runs/adapted --start smollm2-135m --lora-rank 8 --steps 300",
    )
    shortcuts: ClassVar = {"steps": "training.steps", "seed": "training.seed"}
    writes = "required"
    product = "model"

    corpus: Annotated[str, Positional("CORPUS")] = Field(
        description="The corpus folder, made by `energylm corpus build`."
    )

    # The key keeps the name that recipes and finished artefacts know it by.
    pretrained: Annotated[str | None, Flag("--start")] = Field(
        None, description=LanguageModelSettings.model_fields["pretrained"].description
    )

    @property
    def title(self) -> str:
        """Which model it is, in words."""
        if self.kind == "ralm":
            return f"ralm of {self.base} and {self.preset}"
        return f"balm as large as {self.base} and {self.preset}" if self.base else self.pretrained or self.preset

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.verbs.lm.working import describe_training

        return describe_training(self, job.folder)

    def run(self, job: Job = DEFAULT_JOB) -> "LMRun":
        from energylm.verbs.lm.working import train_lm

        return train_lm(self, job.folder)

    def cost(self, around: "Surroundings") -> "Counted":
        from energylm.jobs.costs import count_training
        from energylm.models.compute import Network

        network = around.network(
            self.pretrained or self.preset,
            vocabulary_size=around.corpus(self.corpus).vocabulary_size,
            overrides=self.network,
        )
        if self.base is not None:
            base = around.network(self.base)
            if self.kind == "ralm":
                network = Network(**{**vars(network), "read_only": base})
            else:
                network = network.widened(base.parameters + network.parameters)
        validated = 0 if self.training.validation.every_steps is None else self.validation_windows or 0
        counted = count_training(
            network, self.training, around, rows=1, length=self.window, predicted=1.0, validated=validated
        )
        counted.product = network
        return counted

    def shown(self, result: "LMRun") -> str:
        perplexity = result.best_perplexity.summary() if result.best_perplexity else "not validated"
        if result.start_bits_per_byte is not None:
            perplexity += f" (before training {result.start_bits_per_byte:.4f} bits per byte)"
        return f"{result.model}: {perplexity}; step {result.best_step:,} of {result.steps:,}\n"


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
    length: int = Field(WINDOW_TOKENS, ge=1, description="Tokens of a window.")
    prefix_tokens: int = Field(
        PREFIX_TOKENS, ge=0, description="Tokens of each text or window that are given and not scored."
    )
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

        from energylm.verbs.lm.working import score_texts

        return score_texts(self, job)

    def shown(self, result: "LMScores") -> str:
        return ""  # each line was written as soon as it was known


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
    prompt: Strings = Field(("",), min_length=1, description="A text to continue; empty starts a new document.")
    n: int = Field(N_TEXTS, ge=1, description="Continuations of each prompt.")
    max_new_tokens: int = Field(MAX_NEW_TOKENS, ge=1, description="Tokens of a continuation at most.")
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

        from energylm.verbs.lm.working import sample_texts

        return sample_texts(self, job)

    def shown(self, result: "LMSamples") -> str:
        return ""  # written while running
