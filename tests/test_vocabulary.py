"""One vocabulary: a word has one default in every signature and every verb; where it has two, they are named here.

`config.vocabulary` says why. The walk covers all public methods of the seven classes that people import and all fields
of all verbs, those of nested configs included. `demo` is a recipe: like all recipes, it names its values itself.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

import energylm
from energylm.config import vocabulary
from energylm.verbs import table

DEFAULTS = {
    "n": vocabulary.N,
    "top_k": None,
    "top_p": None,
    "temperature": 1.0,
    "max_new_tokens": vocabulary.MAX_NEW_TOKENS,
    "prefix_tokens": vocabulary.PREFIX_TOKENS,
    "seed": 0,
    "device": None,
    "dtype": None,
    "batch_tokens": None,
    "beta": vocabulary.BETA,
    "length": vocabulary.WINDOW_TOKENS,
    "window": vocabulary.WINDOW_TOKENS,
}
OTHERS = {  # owners whose word means something else, each with its own default
    ("n", vocabulary.N_TEXTS): {"LanguageModel.sample", "LanguageModel.chat", "lm sample"},
    ("max_new_tokens", None): {
        f"ResidualModel.{name}"
        for name in ("convention", "log_weights", "measure", "perplexity", "perplexity_by_samples")
    }
    | {"energy value"},
    ("prefix_tokens", vocabulary.WINDOW_PREFIX_TOKENS): {
        "negatives",
        "perplexity",
        "study",
        "study new",
        "sampled-text",
        "repetitions",
    },
    ("beta", vocabulary.SIMILARITY_BETA): {"Energy.from_similarity", "EnergyModel.from_similarity"},
    ("beta", None): {  # the energy's own
        "Energy.load",
        "EnergyModel.load",
        "ResidualModel.load",
        "energy value",
        "generate",
        "serve",
    },
    ("length", None): {"mcmc"},  # of a text that begins as nothing but masks: none is given
}
Found = tuple[str, str, Any]  # owner, word, default


def of_signatures(owner: str, face: type) -> Iterator[Found]:
    for name, method in inspect.getmembers(face, callable):
        if name.startswith("_") and name != "__init__":
            continue
        for word, parameter in inspect.signature(method).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                yield f"{owner}.{name}", word, parameter.default


def of_fields(owner: str, config: type[BaseModel]) -> Iterator[Found]:
    for word, field in config.model_fields.items():
        if field.is_required():
            continue
        default = field.get_default(call_default_factory=field.default_factory_takes_validated_data is not True)
        if isinstance(default, BaseModel):
            yield from of_fields(owner, type(default))
        else:
            yield owner, word, default[0] if isinstance(default, tuple) and len(default) == 1 else default


def disagreements(found: Iterator[Found] | list[Found]) -> list[str]:
    return [
        f"{owner}: {word}={default!r}, elsewhere {DEFAULTS[word]!r}"
        for owner, word, default in found
        if word in DEFAULTS and default != DEFAULTS[word] and owner not in OTHERS.get((word, default), ())
    ]


def everywhere() -> list[Found]:
    faces = [name for name in energylm.__all__ if name != "__version__"]
    found = [entry for name in faces for entry in of_signatures(name, getattr(energylm, name))]
    verbs = sorted({*table.VERBS, *table.STEPS_ONLY} - {"demo"})
    return found + [entry for name in verbs for entry in of_fields(name, table.verb_class(name))]


def test_a_word_has_one_default_everywhere():
    found = everywhere()
    assert disagreements(found) == []
    assert {word for _, word, _ in found} >= set(DEFAULTS)
    for (word, default), owners in OTHERS.items():  # nothing is excused that is not there
        assert {owner for owner, of, value in found if (of, value) == (word, default)} == owners, (word, default)


@pytest.mark.parametrize("word", ["n", "prefix_tokens", "temperature"])
def test_a_second_default_is_found(word):
    """Teeth: a planted signature, and a planted field, each with a value that nothing excuses."""

    class Planted:
        def sample(self, *, n: int = 999, prefix_tokens: int = 7, temperature: float = 0.7) -> None: ...

    class PlantedOptions(BaseModel):
        n: int = 999
        prefix_tokens: tuple[int, ...] = (7,)
        temperature: float = 0.7

    class PlantedVerb(BaseModel):
        inner: PlantedOptions = PlantedOptions()

    for found in (of_signatures("Planted", Planted), of_fields("planted", PlantedVerb)):
        assert [line for line in disagreements(list(found)) if f": {word}=" in line]


def test_what_one_face_excuses_another_does_not():
    assert disagreements([("ResidualModel.sample", "n", vocabulary.N_TEXTS)])
    assert not disagreements([("LanguageModel.sample", "n", vocabulary.N_TEXTS)])


@pytest.mark.parametrize("name", ["smollm2-135m", "minilm-l6"])
def test_the_model_that_is_taken_where_none_is_named_is_known(name):
    from energylm.bundles.known_models import KNOWN_MODELS

    assert name in KNOWN_MODELS and name in (vocabulary.LANGUAGE_MODEL, vocabulary.ENCODER)
