"""Perplexity of a set of sequences, with its standard error and bits per byte.

    R = Σ_i nll_i / Σ_i tokens_i        perplexity = exp R        bits per byte = Σ_i nll_i / (ln 2 · Σ_i bytes_i)

Divided by the tokens of all sequences together, never a mean of means. R is a ratio of two sums over sequences, so its
error is the ratio estimator's (delta method), which counts the sequences, not the tokens, as independent:

    se(R)² = 1 / (B · mean(tokens)²) · Σ_i (nll_i − R · tokens_i)² / (B − 1)        se(exp R) = exp R · se(R)

Bits per byte compare models with different tokenizers; perplexity does not.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from energylm.errors import DataError, ModelError
from energylm.records import Record


@dataclass(frozen=True)
class PerplexityEstimate(Record):
    value: float
    standard_error: float | None  # of `value`; None for a single sequence
    nats_per_token: float
    bits_per_byte: float | None  # None where no bytes are known
    sequences: int
    tokens: int
    bytes: int | None
    convention: str

    def summary(self) -> str:
        """One line for people."""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.3g}"
        bits = "" if self.bits_per_byte is None else f", {self.bits_per_byte:.4f} bits per byte"
        return (
            f"perplexity {self.value:.4g}{error}{bits} over {self.sequences:,} sequences, {self.tokens:,} tokens "
            f"({self.convention})"
        )


def perplexity(
    log_prob_B: Tensor, tokens_B: Tensor, bytes_B: Tensor | None = None, *, convention: str
) -> PerplexityEstimate:
    """Perplexity from the log-probability, the number of scored tokens and (where known) the bytes of each sequence.

    `convention` says what was scored: span, tokenizer, start and end tokens.
    """
    nll_B, tokens_B = -log_prob_B.double(), tokens_B.double()
    if not len(tokens_B) or bool((tokens_B <= 0).any()):
        raise DataError("perplexity needs at least one scored token in every sequence")
    if bool(nll_B.isnan().any()):
        raise ModelError("a log-probability is not a number; the model's weights are damaged or its values overflow")
    sequences, tokens = len(tokens_B), float(tokens_B.sum())
    nats_per_token = float(nll_B.sum()) / tokens
    value = math.exp(nats_per_token) if nats_per_token < 700 else math.inf
    standard_error = None
    if sequences > 1 and math.isfinite(value):
        residual_B = nll_B - nats_per_token * tokens_B
        variance = float((residual_B**2).sum()) / (sequences - 1) / sequences / (tokens / sequences) ** 2
        standard_error = value * math.sqrt(variance)
    total_bytes = None if bytes_B is None else int(bytes_B.sum())
    return PerplexityEstimate(
        value=value,
        standard_error=standard_error,
        nats_per_token=nats_per_token,
        bits_per_byte=float(nll_B.sum()) / (math.log(2) * total_bytes) if total_bytes else None,
        sequences=sequences,
        tokens=int(tokens),
        bytes=total_bytes,
        convention=convention,
    )
