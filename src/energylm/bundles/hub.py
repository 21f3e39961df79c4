"""Models made here on the Hugging Face hub: fetched by OWNER/NAME like any other, pushed with a card that says where
they come from.

    energy.push_to_hub("OWNER/NAME")                  also language models, detectors, rerankers, joint models
    EnergyModel.from_pretrained("OWNER/NAME")         a name works wherever a folder does (`known_models.locate`)

The card is made from the manifest and from nothing else: data with their licences, base weights by their hashes,
calibration, what was measured with its convention, and the limits of its kind of model. What the manifest does not
know, the card says is not known.

Relations  `model_folder` writes manifests; `known_models` says what a name leads to.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energylm.config.environment import is_hub_name, why_not_fetched
from energylm.errors import ModelError
from energylm.files import read_json
from energylm.tables import Cell, Table, to_markdown

if TYPE_CHECKING:
    from energylm.bundles.model_folder import Saved

MANIFEST = "energylm.json"
CARD = "README.md"
CALIBRATION = "calibration.json"  # of a detector
UNKNOWN = "not known"

# What each kind is, which class reads it, and what nobody should expect of it.
ABOUT = {
    "energy": (
        "A trained energy: one number for a text, lower is likelier. It corrects a language model by exp(−E).",
        "EnergyModel",
        "Its differences mean something for texts like those of the language model and corpus above; for other text, "
        "and as a probability by itself, it was not measured. Look at the effective sample size of every choice.",
    ),
    "detector": (
        "A detector of machine-written text: a score, a threshold, and an abstention where it does not know.",
        "Detector",
        "The rate of false alarms is promised for human texts like the calibration texts only. Short texts, other "
        "languages, writers who are not native and text that was edited or paraphrased are outside of it. Its verdict "
        "is no proof about a person.",
    ),
    "language-model": (
        "A language model: normalised, scores tokens and samples continuations.",
        "LanguageModel",
        "It writes what its corpus makes likely, true or not.",
    ),
    "residual-model": (
        "A joint model: P(x) ∝ P_LM(x) · exp(−E(x)), a language model and an energy in one folder.",
        "ResidualModel",
        "It is normalised by estimates: a perplexity is an interval, and samples are as good as their effective sample "
        "size. Longer continuations need more samples.",
    ),
    "reranker": (
        "A reranker of n-best lists: f + Σ λ·score, the models that score and the λ that were tuned, in one folder.",
        "Reranker",
        "λ weighs the scores of the recogniser or translator whose lists it was tuned on; tune it anew for lists of "
        "another. What was measured on the lists of the tuning is too good.",
    ),
}
OTHER = ("A model made with energylm.", "Scorer", "What is not written above was not measured.")


class OnHub:
    """What a class with `save_pretrained` inherits to be pushed."""

    def push_to_hub(self: "Saved", name: str, *, private: bool = False) -> str:
        """Upload the model with its card to OWNER/NAME of the hub, made if need be; its address."""
        check_hub_name(name)
        with tempfile.TemporaryDirectory(prefix="energylm-") as temporary:
            folder = Path(temporary) / "model"
            self.save_pretrained(folder)
            return push_folder(folder, name, private=private)


def push_folder(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload a model folder of ours, with its card in place of any other; the account is the hub library's own."""
    from huggingface_hub import HfApi

    check_hub_name(name)
    card = model_card(folder, name)
    try:
        hub = HfApi()
        address = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=[CARD], commit_message="Model")
        hub.upload_file(repo_id=name, path_or_fileobj=card.encode(), path_in_repo=CARD, commit_message="Card")
    except Exception as error:  # of the hub, or of whatever HTTP library it stands on
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{folder} could not be pushed to {name!r} ({reason:.200}); log in with `hf auth login`, and check the "
            "owner and the network"
        ) from None
    return str(address)


def fetched(name: str, *, patterns: list[str] | None = None) -> Path:
    """The folder of a hub model that is on this machine from now on."""
    from huggingface_hub import snapshot_download

    try:
        only_here = why_not_fetched() is not None
        return Path(
            snapshot_download(name, allow_patterns=patterns, ignore_patterns=[CARD], local_files_only=only_here)
        )
    except Exception as error:  # of the hub, or of whatever HTTP library it stands on
        reason = " ".join(str(error).split())
        raise ModelError(f"{name!r} cannot be had from the hub ({reason:.160}); give a model folder") from None


def check_hub_name(name: str) -> None:
    if not is_hub_name(name):
        raise ModelError(f"{name!r} is no name of the hub; give OWNER/NAME, letters, digits, '-', '_' and '.'")


def model_card(folder: Path, name: str) -> str:
    """Markdown with the hub's header, from the manifest in `folder` and of the models inside it."""
    if not (folder / MANIFEST).is_file():
        raise ModelError(
            f"{folder} holds no {MANIFEST}, so nothing is known of where it comes from; give a model of ours"
        )
    manifests = {file.parent: read_json(file) for file in sorted(folder.rglob(MANIFEST))}
    manifest = manifests[folder]
    kind = "detector" if "detector" in manifest else manifest["kind"]
    what, reader, limits = ABOUT.get(kind, OTHER)
    licences = sorted({licence for one in manifests.values() for licence in _values(one, "licence") if licence})
    parts = [
        _header(kind, licences, [origin for one in manifests.values() for origin in _values(one, "origin")]),
        f"# {manifest.get('name') or name.partition('/')[2]}\n\n{what}",
        f'```python\nfrom energylm import {reader}\n\nmodel = {reader}.from_pretrained("{name}")\n```',
    ]
    for path, inner in manifests.items():
        title = "" if path == folder else f" of {path.relative_to(folder).as_posix()}/"
        parts += _sections(inner, title)
    if (folder / CALIBRATION).is_file():
        parts.append("## Calibration\n\n" + _table(read_json(folder / CALIBRATION)))
    return "\n\n".join([*parts, f"## Limits\n\n{limits}"]) + "\n"


def _header(kind: str, licences: list[str], origins: list[str]) -> str:
    lines = ["library_name: energylm", f"tags: [energy-based-model, {kind}]"]
    lines.append(f"license: {licences[0].lower()}" if len(licences) == 1 else "license: other")
    if bases := sorted({origin for origin in origins if is_hub_name(origin)}):
        lines.append(f"base_model: [{', '.join(bases)}]")
    return "\n".join(["---", *lines, "---"])


def _sections(manifest: Mapping[str, Any], title: str) -> Iterator[str]:
    """Data and base, measurements, and everything else that one manifest knows."""
    known = dict(manifest.get("provenance", {}))
    measured = {key: known.pop(key) for key in ("validation", "held_out", "calibration") if key in known}
    settings = known.pop("config", {})
    facts = {key: value for key, value in manifest.items() if key not in ("provenance", "weights", "kind", "name")}
    yield f"## Made from{title}\n\n" + (_table(known) if known else f"Its data are {UNKNOWN}.")
    yield f"## Measured{title}\n\n" + (_table(measured) if measured else "Nothing was measured when it was made.")
    rest = {**facts, **({"settings": settings} if settings else {}), "weights": manifest.get("weights") or UNKNOWN}
    yield f"## Details{title}\n\n" + _table(rest)


def _table(values: Mapping[str, Any]) -> str:
    rows: list[list[Cell]] = [[key.replace("_", " "), value] for key, value in _flat(values)]
    return to_markdown(Table(["what", "value"], rows)).strip()


def _flat(values: Any, path: str = "") -> Iterator[tuple[str, Cell]]:
    """Leaves of nested JSON with their paths; of a path on somebody's machine only the last name."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(value, f"{path}, {key}" if path else str(key))
    elif isinstance(values, list) and any(isinstance(value, Mapping | list) for value in values):
        for index, value in enumerate(values, start=1):
            yield from _flat(value, f"{path} {index}")
    elif isinstance(values, list):
        yield path, ", ".join(map(_shown, values)) or None
    else:
        yield path, _shown(values) if isinstance(values, str) else values


def _shown(value: Any) -> str:
    text = str(value)
    return Path(text).name if text.startswith(("/", "~")) else text


def _values(values: Any, key: str) -> Iterator[str]:
    """Every text under `key`, at any depth."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if name == key and isinstance(value, str):
                yield value
            yield from _values(value, key)
    elif isinstance(values, list):
        for value in values:
            yield from _values(value, key)
