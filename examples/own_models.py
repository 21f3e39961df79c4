"""A language model and an encoder of your own as one residual model: score, sample, save.

    python examples/own_models.py LANGUAGE_MODEL ENCODER OUTPUT

Both are folders with config.json, safetensors weights and a tokenizer (what transformers' `save_pretrained` writes),
known models, or hub names. The encoder reads text, so the tokenizers need not agree. Its energy is untrained here:
train it with `energylm energy train` and load it with `EnergyModel.from_pretrained`.
"""

import sys

from energylm import EnergyModel, LanguageModel, ResidualModel

TEXTS = [
    "The clerk counts the boats. A sailor mends a bridge.",
    "Our neighbour paints an old map. Her sister sells it.",
]


def main(language_model: str, encoder: str, output: str) -> None:
    lm = LanguageModel.from_pretrained(language_model)  # any causal language model
    energy = EnergyModel.from_encoder(encoder, reads="text")  # any encoder; lower energy = likelier
    joint = ResidualModel(lm, energy)  # P(x | c) ∝ P_LM(x | c) · exp(−E(c, x))

    perplexity = joint.perplexity(TEXTS, prefix_tokens=5, n=200, seed=0)
    print(f"base {perplexity.base.value:.1f}, joint {perplexity.lower:.1f} to {perplexity.upper:.1f}")

    sample = joint.sample("The clerk", n=64, top_k=10, max_new_tokens=20, seed=0)
    print(f"The clerk{sample.text}   (64 candidates worth {sample.ess:.1f})")

    joint.save_pretrained(output)
    again = ResidualModel.from_pretrained(output)
    print(again.sample("The clerk", n=64, top_k=10, max_new_tokens=20, seed=0).text == sample.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
