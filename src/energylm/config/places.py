"""Where things live: `ENERGYLM_HOME` for what we make, `ENERGYLM_DATA` for data sets that the user has, the hub."""

import os
import re
from pathlib import Path

from energylm.errors import DataError


def home_folder() -> Path:
    """Models, artefacts and results: `ENERGYLM_HOME`, or the user's cache folder."""
    if chosen := os.environ.get("ENERGYLM_HOME"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("energylm"))


def data_folder() -> Path:
    """The folder of data sets named by `ENERGYLM_DATA`; a missing one is an error that says how to set it."""
    chosen = os.environ.get("ENERGYLM_DATA")
    if not chosen:
        raise DataError("ENERGYLM_DATA is not set; set it to the folder that holds the data sets (wiki/, books/, …)")
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(f"ENERGYLM_DATA names {folder}, which is not a folder")
    return folder


def is_hub_name(name: str) -> bool:
    """Whether `name` can be a model of the hub: OWNER/NAME. The few old names without an owner have one there, too."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None and not name.endswith(".gguf")
