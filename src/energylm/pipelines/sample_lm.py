"""Sample continuations of prompts from a language model: `energylm lm sample`."""

from collections.abc import Sequence

from energylm.bundles.language_model import LanguageModel
from energylm.bundles.text_results import Samples
from energylm.config.sampling import Truncation
from energylm.progress import progress


def sample_lm(
    model: LanguageModel,
    prompts: Sequence[str],
    *,
    n: int,
    max_new_tokens: int,
    truncation: Truncation,
    stop_at_eos: bool,
    seed: int,
) -> Samples:
    """n continuations of each prompt; an empty prompt starts a document."""
    with progress("sampling", total=len(prompts) * n * max_new_tokens, unit="token") as bar:
        return model.sample(
            prompts,
            n=n,
            max_new_tokens=max_new_tokens,
            truncation=truncation,
            stop_at_eos=stop_at_eos,
            seed=seed,
            progress=bar,
        )
