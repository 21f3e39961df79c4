"""How an energy is probed: `energylm probe perturb | attack | differences` (bakhtin2019 §5.6, appendices E and F)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

Split = Literal["train", "valid", "test"]
Towards = Literal["real", "fake"]


class PerturbConfig(Config):
    """One change at every position of real texts, and random text: what energy and language model say (fig. 2)."""

    energy: str = Field(description="An energy folder (`energylm energy train`).")
    language_model: str = Field(description="The language model: a folder, a GGUF file, a known model or a hub name.")
    source: str = Field(description="Real texts: a corpus folder, or a text or JSONL file.")
    split: Split = Field("test", description="Split of a corpus folder.")
    field: str = Field("text", description="JSONL field that holds the text.")
    documents: Literal["packed", "within"] = Field(
        "within", description="Whether windows of a corpus may cross documents (packed) or not."
    )
    length: int = Field(160, ge=2, description="Tokens of a text.")
    texts: int = Field(100, ge=2, description="Windows, chosen at random from a corpus, evenly from a file.")
    entity: str | None = Field(
        None, description="The name that replaces tokens, one token of the language model, e.g. ' John'; none = chosen."
    )
    common: str | None = Field(
        None, description="The commonest word, one token of the language model, e.g. ' the'; none = counted."
    )
    ends: int = Field(
        40, ge=1, description="Tokens at either end that negatives had generated in training; the rest is the middle."
    )
    seed: int = Field(0, ge=0, description="Of the choice of windows and of random text.")

    @model_validator(mode="after")
    def _has_a_middle(self) -> Self:
        if 2 * self.ends >= self.length:
            raise ValueError(
                f"ends of {self.ends} tokens leave no middle of {self.length}; give fewer, as many as negatives had "
                "generated"
            )
        return self


class AttackConfig(Config):
    """A few tokens replaced, found by the energy's gradient, to turn its verdict (appendix F)."""

    energy: str = Field(description="An energy folder (`energylm energy train`).")
    language_model: str = Field(description="The language model that tells perplexity: a folder or a name.")
    towards: Towards = Field("real", description="real: lower the energy of machine text; fake: raise that of real.")
    source: str | None = Field(
        None, description="Texts to edit: windows of a corpus folder, or a text or JSONL file, a text a line."
    )
    negatives: str | None = Field(
        None,
        description="Instead of a source: a folder made by `energylm negatives`. Towards real its generated texts are "
        "edited, towards fake the real ones beside them.",
    )
    corpus: str | None = Field(None, description="The corpus folder that the negatives were made from.")
    split: Split = Field("test", description="Split of a corpus folder as source.")
    field: str = Field("text", description="JSONL field that holds the text.")
    length: int = Field(160, ge=2, description="Tokens of a window of a corpus as source.")
    texts: int = Field(100, ge=1, description="Texts at most, chosen at random from folders, the first of a file.")
    max_edits: int = Field(5, ge=1, description="Tokens that may be replaced in a text (the paper's examples: 5).")
    candidates: int = Field(
        160, ge=1, description="Best replacements by first order, spread over positions, scored exactly each step."
    )
    threshold: float = Field(0.0, description="The energy at which the verdict turns.")
    only_generated: bool = Field(
        False, description="With negatives: edit the generated part (or the real one in its place), not the context."
    )
    perplexity_budget: float | None = Field(
        None, gt=1, description="No edit may raise the text's perplexity above this many times its own; none = any."
    )
    fidelity_pairs: int = Field(
        128, ge=3, description="Random replacements of a text whose first-order and exact changes are compared."
    )
    seed: int = Field(0, ge=0, description="Of the choice of texts and of those replacements.")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.source is None) == (self.negatives is None):
            raise ValueError("give texts to edit: either a source (a corpus or a file) or negatives with their corpus")
        if (self.negatives is None) != (self.corpus is None):
            raise ValueError("negatives and the corpus that they were made from come together; give both or neither")
        if self.only_generated and self.negatives is None:
            raise ValueError("only_generated needs negatives, whose generated part is known; leave it out")
        return self


class DifferencesConfig(Config):
    """How far apart an energy puts real texts and the texts generated from the same contexts (appendix E)."""

    energy: str = Field(description="An energy folder (`energylm energy train`).")
    negatives: tuple[str, ...] = Field(
        min_length=1, description="Folders made by `energylm negatives`: left to right, right to left, …; a row each."
    )
    corpus: str = Field(description="The corpus folder that they were made from.")
    contexts: int = Field(1000, ge=2, description="Contexts of each folder at most, chosen at random.")
    per_context: int = Field(1, ge=1, description="Generated texts of each context at most.")
    new_tokens: int | None = Field(
        None, ge=1, description="Only contexts that are continued by so many tokens (the paper: 40); none = all."
    )
    margins: tuple[float, ...] = Field(
        (0.0, 0.1, 1.0), min_length=1, description="Margins to count (0.1 in the paper's figure 3, 1 in its eq. 2)."
    )
    seed: int = Field(0, ge=0, description="Of the choice of contexts.")
