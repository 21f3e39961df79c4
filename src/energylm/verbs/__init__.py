"""Every verb of the command line as a class: `from energylm.verbs import Perplexity`. Imported when used."""

from importlib import import_module
from typing import Any

from energylm.verbs.table import class_names


def __getattr__(name: str) -> Any:
    homes = class_names()
    if name in homes:
        return getattr(import_module(homes[name]), name)
    raise AttributeError(f"module 'energylm.verbs' has no verb {name!r}; it has {', '.join(sorted(homes))}")


def __dir__() -> list[str]:
    return sorted(class_names())
