"""An energy as a function of a language model's token ids, whatever it reads: tokens, text, or the messages of a chat.

    E(c, x_n)      (B, N) energies of N continuations of each of B contexts; +∞ forbids a continuation

    reads tokens   `contracts.SequenceEnergy`; `contracts.ContinuationEnergy` reads each context once
    reads text     `TextsUnderModel`: the language model's tokenizer writes prompt and completion
    a sum          `SumUnderModel`: every part in its own way

What was written after the prompt already (earlier chunks, the tokens before a step) belongs to the completion, so that
the energy of a text does not depend on how it was drawn.

Relations  `text_energy` is what people build; `weighted_draws` asks `context_energies` for every draw.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from energylm import contracts
from energylm.bundles.chat import Message
from energylm.bundles.energy_reading import joined
from energylm.bundles.joint_texts import Context, JointTexts
from energylm.errors import ModelError

TOKENS_AT_ONCE = 1 << 14  # of a micro-batch for an energy that makes none of its own


@dataclass(frozen=True)
class Passage:
    """What an energy judges: a completion, and what it completes: a text, or the messages of a chat."""

    completion: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()


@runtime_checkable
class ContextEnergy(Protocol):
    """An energy that is told whole contexts, chats included."""

    def context_energies(self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor) -> Tensor:
        """(B, N) energies of N right-padded continuations of each context."""
        ...


BoundEnergy = contracts.SequenceEnergy | ContextEnergy


@torch.no_grad()
def context_energies(
    energy: BoundEnergy, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor
) -> Tensor:
    """(B, N) float64 on the CPU: the energies of N continuations of each context; nan and −inf are errors."""
    if isinstance(energy, ContextEnergy):
        energy_BN = energy.context_energies(contexts, tokens_BNT, lengths_BN)
    else:
        ids = [context.energy for context in contexts]
        # Sharing a prefix needs a prefix: where there is none, the continuations are whole sequences.
        if isinstance(energy, contracts.ContinuationEnergy) and all(ids):
            energy_BN = energy.continuation_energies(ids, tokens_BNT, lengths_BN)
        else:
            energy_BN = _whole_sequence_energies(energy, ids, tokens_BNT, lengths_BN)
    return _checked(energy_BN)


@runtime_checkable
class EnergyWithStates(Protocol):
    """An energy that is a function of pooled states of a network, which tell more of an unfinished text than it."""

    def energies_and_states(
        self, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """(B, N) energies of each context with each of its continuations, and (B, N, D) states if there are any."""
        ...


@torch.no_grad()
def energies_and_states(
    energy: BoundEnergy, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`context_energies`, and the states (B, N, D) of its networks; of a sum those of all parts side by side."""
    if isinstance(energy, SumUnderModel):
        return energy.energies_and_states(contexts, tokens_BNT, lengths_BN)
    if not isinstance(energy, EnergyWithStates):
        return context_energies(energy, contexts, tokens_BNT, lengths_BN), None
    ids = [context.energy for context in contexts]
    energy_BN, states_BND = energy.energies_and_states(ids, tokens_BNT, lengths_BN)
    return _checked(energy_BN), None if states_BND is None else states_BND.double().cpu()


def _checked(energy_BN: Tensor) -> Tensor:
    energy_BN = energy_BN.double().cpu()
    bad_BN = energy_BN.isnan() | (energy_BN == -math.inf)
    if bad_BN.any():
        raise ModelError(
            f"{int(bad_BN.sum())} of {energy_BN.numel()} energies are not finite (nan or −inf; +inf forbids a text)"
            "; retrain or recalibrate the energy"
        )
    return energy_BN


def scaled(energy: Tensor, weight: float) -> Tensor:
    """weight · E; what is forbidden stays forbidden, whatever the weight."""
    return torch.where(energy == math.inf, math.inf, weight * energy)


class TextsUnderModel:
    """`judge` gives (B,) energies of passages, which are written by the tokenizer of `lm`; ids stand for the text where
    it has none."""

    def __init__(self, judge: Callable[[Sequence[Passage]], Tensor], lm: contracts.CausalModel) -> None:
        self._judge, self._texts = judge, JointTexts(lm)

    def context_energies(self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor) -> Tensor:
        passages = [
            passage
            for context, tokens_NT, lengths_N in zip(contexts, tokens_BNT.tolist(), lengths_BN.tolist(), strict=True)
            for passage in self._passages(context, [row[:n] for row, n in zip(tokens_NT, lengths_N, strict=True)])
        ]
        return self._judge(passages).view(lengths_BN.shape)

    def _passages(self, context: Context, sequences: Sequence[list[int]]) -> list[Passage]:
        given, written = context.split()
        prompt = self._texts.prompt_text(given)
        completions = self._texts.new_texts(given, [[*written, *sequence] for sequence in sequences])
        return [Passage(completion, prompt=prompt, messages=given.messages) for completion in completions]


class SumUnderModel:
    """Σ_k λ_k E_k of parts that read in their own ways."""

    def __init__(self, parts: Sequence[tuple[float, BoundEnergy]]) -> None:
        self._parts = parts

    def context_energies(self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor) -> Tensor:
        total_BN = torch.zeros(lengths_BN.shape, dtype=torch.float64)
        for weight, energy in self._parts:
            total_BN += scaled(context_energies(energy, contexts, tokens_BNT, lengths_BN), weight)
        return total_BN

    def energies_and_states(
        self, contexts: Sequence[Context], tokens_BNT: Tensor, lengths_BN: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        total_BN, states = torch.zeros(lengths_BN.shape, dtype=torch.float64), []
        for weight, energy in self._parts:
            energy_BN, states_BND = energies_and_states(energy, contexts, tokens_BNT, lengths_BN)
            total_BN += scaled(energy_BN, weight)
            if states_BND is not None:
                states.append(states_BND)
        return total_BN, torch.cat(states, dim=-1) if states else None


def _whole_sequence_energies(
    energy: contracts.SequenceEnergy, contexts: Sequence[Sequence[int]], tokens_BNT: Tensor, lengths_BN: Tensor
) -> Tensor:
    """Context and continuation joined, a micro-batch of rows at a time."""
    longest = max(map(len, contexts)) + tokens_BNT.shape[2]
    batches = joined(contexts, tokens_BNT, lengths_BN, rows=max(1, TOKENS_AT_ONCE // longest))
    return torch.cat([energy.energies(tokens_RT, lengths_R) for tokens_RT, lengths_R in batches]).view_as(lengths_BN)
