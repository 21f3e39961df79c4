"""Electric: an energy for every token of a text, from a bidirectional encoder that reads the text as it is.

    E(x)_t = wᵀ h(x)_t + b                                                                     Clark et al. 2020, §2.1
    p(x_t | x_∖t) = exp(−E(x)_t) / Z(x_∖t)          Z(x_∖t) = Σ_v exp(−E(REPLACE(x, t, v))_t)

−E is an unnormalised log-probability for all tokens in one pass; noise-contrastive training makes Z about 1. The bias b
(the paper has one inside h, in the encoder's last normalisation) starts at log V, so that p̂ starts as the uniform
distribution and the first steps are not spent on finding the vocabulary's size. Z itself needs |V| passes for a single
position: `exact_conditionals` is for tiny vocabularies and for checks.

With word classes the encoder reads, beside the vector of a token, one of how common its whole word is:

    x_t = V[token t] + 8 C[class(word of t)]     C = 0 at first
    class     0 no word, 1 a word that is nowhere, 2 one of a dictionary, 3 + ⌊log2 n⌋ one that stands n times in a text

The pieces of a word do not say whether it is one, and an hour of training does not tell an encoder, either.

Use it     to score, rerank or fine-tune: the sum of −E over a text is its pseudo-log-likelihood. Word classes where
           what is scored may hold strings of letters that are no words, such as what a recogniser misheard.
Relations  `objectives.noised_tokens` trains it; `pooled` gives one energy to a whole sequence.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from energylm.randomness import generator

INITIAL_SPREAD = 0.01  # of the first energies around log V, for hidden states of unit variance
CONTINUES, BEGINS, STANDS_ALONE = 0, 1, 2  # what a token does to words; the last belongs to none
NO_WORD, UNKNOWN, IN_DICTIONARY, ONCE = 0, 1, 2, 3  # classes
CLASSES, STRETCH = 32, 8.0  # vectors that start from nothing learn so many times as fast as all that is learnt already
BASE, PLACES = 0x9E3779B97F4A7C15, 64  # of numbers of words; the tokens of one beyond so many share a place


class WordClasses(nn.Module):
    """`part_V` is what each token does to words; `key_W` are the sorted numbers of known words (`word_keys`), and
    `class_W` their classes."""

    part_V: Tensor
    key_W: Tensor
    class_W: Tensor

    def __init__(self, width: int, *, part_V: Tensor, key_W: Tensor, class_W: Tensor) -> None:
        super().__init__()
        self.register_buffer("part_V", part_V)
        self.register_buffer("key_W", key_W)
        self.register_buffer("class_W", class_W)
        self.embedding = nn.Embedding(CLASSES, width)
        nn.init.zeros_(self.embedding.weight)

    @classmethod
    def of_counts(cls, width: int, *, part_V: Tensor, key_W: Tensor, count_W: Tensor) -> Self:
        """Of known words by how often they stand in some text; those that stand there never are a dictionary's."""
        order_W = key_W.argsort()
        count_W = count_W[order_W]
        common_W = ONCE + count_W.clamp(min=1).double().log2().floor().long().clamp(max=CLASSES - 1 - ONCE)
        class_W = torch.where(count_W > 0, common_W, IN_DICTIONARY)
        return cls(width, part_V=part_V.to(torch.uint8), key_W=key_W[order_W], class_W=class_W.to(torch.uint8))

    @classmethod
    def of_state(cls, state: dict[str, Tensor]) -> Self:
        """What `state_dict` gave."""
        known = {name: state[name] for name in ("part_V", "key_W", "class_W")}
        words = cls(state["embedding.weight"].shape[1], **known)
        words.load_state_dict(state)
        return words

    def classes(self, tokens_BT: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """(B, T): of the word that each token belongs to."""
        part_BT = self.part_V[tokens_BT]
        if real_BT is not None:
            part_BT = part_BT.masked_fill(~real_BT, STANDS_ALONE)
        key_BT = word_keys(tokens_BT, part_BT)
        place_BT = torch.searchsorted(self.key_W, key_BT).clamp(max=len(self.key_W) - 1)
        class_BT = torch.where(self.key_W[place_BT] == key_BT, self.class_W[place_BT].long(), UNKNOWN)
        return class_BT.masked_fill(part_BT == STANDS_ALONE, NO_WORD)

    def forward(self, tokens_BT: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """(B, T, D) vectors of the classes; 0 where there is no word."""
        class_BT = self.classes(tokens_BT, real_BT)
        vector_BTD: Tensor = self.embedding(class_BT)
        return STRETCH * vector_BTD * (class_BT != NO_WORD)[..., None]


def word_keys(tokens_BT: Tensor, part_BT: Tensor) -> Tensor:
    """(B, T): a number for the word that each token belongs to, the same for the same tokens and else almost surely
    another: Σ (token + 1) · base^place modulo 2^64. A row, and what stands alone, ends a word."""
    begins_BT = part_BT != CONTINUES
    begins_BT[:, 0] = True
    begins_BT[:, 1:] |= part_BT[:, :-1] == STANDS_ALONE
    word_BT = begins_BT.cumsum(1) - 1
    index_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    place_BT = index_BT - (index_BT * begins_BT).cummax(1).values
    powers = [(pow(BASE, place, 1 << 64) + (1 << 63)) % (1 << 64) - (1 << 63) for place in range(PLACES)]
    digit_BT = (tokens_BT + 1) * torch.tensor(powers, device=tokens_BT.device)[place_BT.clamp(max=PLACES - 1)]
    return torch.zeros_like(digit_BT).scatter_add(1, word_BT, digit_BT).gather(1, word_BT)


class TokenEnergy(nn.Module):
    """`encoder` is any bidirectional base model of transformers; `seed` names the first projection."""

    def __init__(self, encoder: PreTrainedModel, *, words: WordClasses | None = None, seed: int = 0) -> None:
        super().__init__()
        self.encoder, self.words = encoder, words
        width = encoder.config.hidden_size
        dtype = torch.promote_types(encoder.dtype, torch.float32)  # energies are differences of nats
        self.head = nn.utils.skip_init(nn.Linear, width, 1, device=encoder.device, dtype=dtype)
        stream = generator(seed, "token energy head")
        weight_1D = torch.randn(1, width, generator=stream, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            self.head.weight.copy_(weight_1D * INITIAL_SPREAD / width**0.5)
            self.head.bias.fill_(math.log(encoder.config.vocab_size))

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """(B, T) energies of right-padded sequences, 0 past the end; without lengths all T tokens are real."""
        if lengths_B is None:
            return self.project(self.encoder(**self.inputs(tokens_BT)).last_hidden_state)
        real_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) < lengths_B[:, None]
        inputs = self.inputs(tokens_BT.masked_fill(~real_BT, 0), real_BT)
        hidden_BTD = self.encoder(**inputs, attention_mask=real_BT.long()).last_hidden_state
        return self.project(hidden_BTD).where(real_BT, 0.0)

    def inputs(self, tokens_BT: Tensor, real_BT: Tensor | None = None) -> dict[str, Tensor]:
        """What the encoder reads of tokens."""
        if self.words is None:
            return {"input_ids": tokens_BT}
        vector_BTD: Tensor = self.encoder.get_input_embeddings()(tokens_BT)
        return {"inputs_embeds": vector_BTD + self.words(tokens_BT, real_BT).to(vector_BTD.dtype)}

    def project(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T) energies of hidden states; mixed precision ends here."""
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            energy_BT1: Tensor = self.head(hidden_BTD.to(self.head.weight.dtype))
            return energy_BT1[..., 0]


def exact_conditionals(
    token_energies: Callable[[Tensor, Tensor], Tensor],
    tokens_BT: Tensor,
    lengths_B: Tensor,
    *,
    position: int,
    vocabulary_size: int,
) -> tuple[Tensor, Tensor]:
    """log p(v | x_∖t) as (B, V) for t = `position`, and log Z(x_∖t) as (B,): |V| passes over the batch.

    `token_energies(tokens_BT, lengths_B)` gives (B, T) energies: a `TokenEnergy`, or a table.
    """
    minus_energy = []
    for candidate in range(vocabulary_size):
        replaced_BT = tokens_BT.clone()
        replaced_BT[:, position] = candidate
        minus_energy.append(-token_energies(replaced_BT, lengths_B)[:, position])
    logit_BV = torch.stack(minus_energy, dim=1)
    log_partition_B = logit_BV.logsumexp(1)
    return logit_BV - log_partition_B[:, None], log_partition_B
