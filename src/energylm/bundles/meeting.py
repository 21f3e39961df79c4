"""Whether an energy and a language model can meet, and what is known against the energy beforehand."""

from energylm import contracts
from energylm.bundles.energy_model import EnergyModel, bind
from energylm.config.energy import NCE
from energylm.config.models import LEFT_TO_RIGHT
from energylm.config.sampling import Truncation
from energylm.errors import ModelError, VocabularyMismatch


def meet(energy: contracts.Energy, lm: contracts.LanguageModel) -> contracts.Energy:
    """The energy as a function of the language model's token ids; an error where there is no such thing."""
    if getattr(getattr(lm, "model", lm), "direction", LEFT_TO_RIGHT) != LEFT_TO_RIGHT:
        raise ModelError("a joint model continues contexts from left to right; give a left-to-right language model")
    if isinstance(energy, EnergyModel):
        return bind(energy, lm)
    size = getattr(energy, "vocabulary_size", lm.vocabulary_size)
    if size != lm.vocabulary_size:
        raise VocabularyMismatch(
            f"the energy reads a vocabulary of {size:,} tokens but the language model writes {lm.vocabulary_size:,}; "
            "train the energy on this model's tokenizer, or give one that reads text"
        )
    return energy


def caution_about(energy: contracts.Energy) -> str | None:
    """A reason to doubt every number that this energy gives, in words; None if there is none."""
    provenance = energy.provenance if isinstance(energy, EnergyModel) else {}
    loss, sources = provenance.get("loss", NCE), provenance.get("sources", [])
    if loss != NCE:
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
