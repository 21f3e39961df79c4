"""Whether an energy fits a language model, and what is known against the pair beforehand.

An energy corrects the very weights that wrote its negatives, on texts like those it was trained on. Its folder tells
which these were (`EnergyModel.provenance`); a language model tells which weights it was loaded with. Where they do not
fit, results say so; an energy of another kind tells nothing of itself, and nothing is said of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from energylm import contracts
from energylm.bundles.energy_binding import BoundEnergy
from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.text_energy import Energy, WeightedSum
from energylm.config.models import LEFT_TO_RIGHT, NCE
from energylm.config.sampling import Truncation
from energylm.errors import ModelError, VocabularyMismatch

CALIBRATION_CONTEXTS = 30  # with fewer, a scale is a guess
WITHIN = "within"  # `NegativesSettings.documents`: windows that cross none, so that they hold no special token
CALIBRATION_ERROR = 0.5  # of the scale itself: its 95 % interval then reaches 0


AnyEnergy = contracts.SequenceEnergy | Energy


def bound_energy(energy: AnyEnergy, lm: contracts.CausalModel) -> BoundEnergy:
    """The energy as a function of the language model's token ids; an error where there is no such thing."""
    _check_parts(energy, lm)
    if getattr(getattr(lm, "model", lm), "direction", LEFT_TO_RIGHT) != LEFT_TO_RIGHT:
        raise ModelError("a joint model continues contexts from left to right; give a left-to-right language model")
    if isinstance(energy, Energy):
        return energy.bind(lm)
    size = getattr(energy, "vocabulary_size", lm.vocabulary_size)
    if size != lm.vocabulary_size:
        raise VocabularyMismatch(
            f"the energy reads a vocabulary of {size:,} tokens but the language model writes {lm.vocabulary_size:,}; "
            "train the energy on this model's tokenizer, or give one that reads text"
        )
    return energy


def caution_about(energy: AnyEnergy, lm: contracts.CausalModel) -> str | None:
    """Reasons to doubt every number that this pair gives, in words; None if there are none."""
    sources = _sources(energy)
    reasons = _other_writer(sources, lm), _no_log_ratio(energy, sources), calibration_caution(energy)
    return "; ".join(filter(None, reasons)) or None


def length_caution(energy: AnyEnergy, tokens: int) -> str | None:
    """A reason to doubt an energy that reads texts of up to `tokens` tokens, longer than those it was trained on."""
    lengths = [source["negatives"]["length"] for source in _sources(energy) if "length" in source["negatives"]]
    if not lengths or tokens <= max(lengths):
        return None
    return (
        f"the energy was trained on windows of {max(lengths):,} tokens and reads up to {tokens:,} here, where nothing "
        "is known of it; train it on longer windows, or keep context and continuation within these"
    )


def end_caution(energy: AnyEnergy, ended: int) -> str | None:
    """A reason to doubt an energy that reads `ended` texts with an end-of-text token, and was trained on none."""
    documents = {source["negatives"].get("documents") for source in _sources(energy)}
    if not ended or documents != {WITHIN}:
        return None
    return (
        f"the energy was trained on windows within documents, where no text ends, and reads {ended:,} here that hold "
        "the end-of-text token, of which it knows nothing; train it on negatives of packed documents (--documents "
        "packed), or let the language model write no special tokens (--plain-text, plain_text=True)"
    )


def calibration_caution(energy: AnyEnergy) -> str | None:
    """A reason to doubt the scale of an energy, which was fitted on few contexts, or badly known from many."""
    return next(filter(None, map(_calibration_caution, trained_parts(energy))), None)


def trained_parts(energy: AnyEnergy) -> list[EnergyModel]:
    """The energies of negatives that it is, or that it is made of."""
    if isinstance(energy, WeightedSum):
        return [part for _, of_sum in energy.parts for part in trained_parts(of_sum)]
    return [energy] if isinstance(energy, EnergyModel) else []


def _calibration_caution(energy: EnergyModel) -> str | None:
    record = energy.provenance.get("calibration", {})
    if not record.get("contexts") or energy.scale != record["scale"]:
        return None  # not calibrated, from before this was recorded, or read without its calibration
    contexts, scale, error = record["contexts"], record["scale"], record.get("scale_standard_error")
    is_vague = error is not None and error > CALIBRATION_ERROR * scale
    if contexts >= CALIBRATION_CONTEXTS and not is_vague:
        return None
    fitted = f"{scale:.3g}" + ("" if error is None else f" ± {error:.2g}")
    return (
        f"the energy's scale {fitted} was fitted on {contexts:,} context{'s' if contexts > 1 else ''}, too few to know "
        "it, and every weight depends on it; hold out more contexts (validation_fraction, --validation)"
    )


def _check_parts(energy: AnyEnergy, lm: contracts.CausalModel) -> None:
    """A class, a function, a name or None in the place of a model is told at once, not at its first use."""
    if isinstance(lm, type) or not isinstance(lm, contracts.CausalModel):
        raise ModelError(
            f"the language model of a joint model is no {_what(lm)}; give LanguageModel.from_pretrained(…), wrap your "
            "network in energylm.LanguageModel, or satisfy contracts.CausalModel"
        )
    if isinstance(energy, type) or not isinstance(energy, contracts.SequenceEnergy | Energy):
        raise ModelError(
            f"the energy of a joint model is no {_what(energy)}; give Energy.load(…), Energy.from_function(…), or an "
            "object with a method energies(tokens_BT, lengths_B) that gives one number a sequence"
        )


def _what(part: object) -> str:
    return f"class ({part.__name__})" if isinstance(part, type) else type(part).__name__


def _sources(energy: AnyEnergy) -> list[Mapping[str, Any]]:
    """The negatives that it was trained on; a detector names texts instead, which tell nothing here."""
    listed = [source for part in trained_parts(energy) for source in part.provenance.get("sources", [])]
    return [source for source in listed if isinstance(source, Mapping)]


def _other_writer(sources: Sequence[Mapping[str, Any]], lm: contracts.CausalModel) -> str | None:
    """An energy corrects the very weights that wrote its negatives: a doubt where these are others, or not known."""
    writers = [source["generator"] for source in sources]
    known = lm.weights_hashes if isinstance(lm, LanguageModel) else frozenset()
    if not writers or known & {writer["sha256"] for writer in writers}:
        return None
    names = ", ".join(dict.fromkeys(f"{writer['name']} (weights {writer['sha256'][:12]})" for writer in writers))
    if not known:
        return (
            f"the energy was trained against {names}, and whether these are the weights of this language model is not "
            "known, since it was not loaded from a folder; load it with LanguageModel.from_pretrained"
        )
    return (
        f"the energy was trained against {names} and not against the weights of this language model, whose mistakes it "
        "need not know; train it on negatives of this one"
    )


def _no_log_ratio(energy: AnyEnergy, sources: Sequence[Mapping[str, Any]]) -> str | None:
    """Whether its training had another optimum than the log-ratio of data to this language model."""
    losses = {part.provenance.get("loss", NCE) for part in trained_parts(energy)} - {NCE}
    for loss in sorted(losses):
        return (
            f"the energy was trained with the {loss} loss, whose minimum is no log-ratio of data to language model: "
            "perplexity and sampling weights mean little; train it with the nce loss"
        )
    if not all(Truncation(**source["negatives"]["truncation"]).is_identity for source in sources):
        return (
            "the energy was trained on negatives of a truncated or tempered proposal, so that it corrects that one and "
            "not the language model; train it on negatives without top-k, top-p and temperature"
        )
    writers = {source["generator"]["sha256"]: source["generator"]["name"] for source in sources}
    if len(writers) > 1:
        return (
            f"the energy was trained against {len(writers)} language models ({', '.join(writers.values())}), so that "
            "it corrects their mixture and none of them; train it on negatives of this one alone"
        )
    return None
