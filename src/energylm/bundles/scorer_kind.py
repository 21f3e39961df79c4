"""Which kind of score a model has, told from its folder without loading it, and whether it is the one asked for."""

from pathlib import Path
from typing import Any, get_args

from transformers import AutoConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from energylm.bundles.cloze_model import ClozeKind
from energylm.bundles.known_models import locate
from energylm.bundles.masked_language_model import KIND as MASKED
from energylm.bundles.model_folder import MANIFEST, check_files
from energylm.config.score import AUTO, FLOAT32, LOG_LIKELIHOOD, TOKEN, ScorerConfig
from energylm.errors import ConfigError, ModelError
from energylm.files import read_json

CAUSAL = "language-model"
CLOZE = get_args(ClozeKind)


def kind_of(path_or_name: str | Path) -> str:
    """What kind of scorer a model can be, without loading it: CAUSAL, MASKED or one of CLOZE."""
    location = locate(path_or_name)
    if isinstance(location, Path) and location.is_file():
        return CAUSAL  # a GGUF file
    if isinstance(location, Path) and (location / MANIFEST).is_file():
        kind = str(read_json(location / MANIFEST)["kind"])
        if kind not in (CAUSAL, MASKED, *CLOZE):
            raise ModelError(
                f"{location} holds a model of kind {kind!r}, which has no score for a text; give a causal or masked "
                f"language model, or one of {', '.join(CLOZE)}"
            )
        return kind
    return _kind_of_others(location)


def check_method(kind: str, config: ScorerConfig, *, name: str) -> None:
    """Whether a model of `kind` has the score that is asked for."""
    if config.method != AUTO and (config.method == LOG_LIKELIHOOD) != (kind == CAUSAL):
        what, has = ("a causal language model", "log-likelihood") if kind == CAUSAL else (
            f"a model of kind {kind!r}",
            "pseudo-log-likelihood",
        )  # fmt: skip
        cure = "masked language model, Electric or two-tower model" if kind == CAUSAL else "causal language model"
        raise ModelError(
            f"{name} is {what}: it has a {has}, no {config.method}; leave the method out, or give a {cure}"
        )
    if config.masking != TOKEN and kind != MASKED:
        raise ConfigError(
            f"masking {config.masking!r} is for masked language models; {name} is a {kind} and hides none"
        )
    if config.eos and kind != CAUSAL:
        raise ConfigError(f"eos is for causal language models; {name} is a {kind} and scores no end-of-sequence token")
    if config.dtype not in (None, FLOAT32) and kind != CAUSAL:
        raise ConfigError(f"dtype {config.dtype} is for causal language models; {name} is a {kind}, read in float32")


def _kind_of_others(location: Path | str) -> str:
    """Folders that transformers wrote, and hub names: by the architecture that their config names."""
    if isinstance(location, Path):
        check_files(location)
    try:
        config: Any = AutoConfig.from_pretrained(location)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{str(location)!r} cannot be loaded ({reason:.200}); give a model folder or name") from None
    names = set(config.architectures or ())
    if names & set(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()):
        return MASKED
    if names & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return CAUSAL
    raise ModelError(
        f"{str(location)!r} is {', '.join(sorted(names)) or 'of no named architecture'}: neither a causal nor a masked "
        "language model, so it has no score for a text; give one with its output layer"
    )
