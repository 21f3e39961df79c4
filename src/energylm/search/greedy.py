"""The best symbol at each step, given those before it.

    y_t = argmax_v f(h_t, v)

Use it     for a first look, and where the model was trained to be followed greedily (goyal2021 ch. 3).
Relations  `beam` with one element; normalising the scores at each step would not change a choice here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from energylm.contracts import Stepper
from energylm.search.back_pointers import written_lengths


def greedy_search(stepper: Stepper, *, lengths_B: Tensor, eos_token_id: int | None = None) -> tuple[Tensor, Tensor]:
    """Symbols (B, T) and their lengths (B,); `lengths_B` is how many a row writes, or the most where there is an EOS.

    After the end a row repeats EOS (0 where there is none).
    """
    state, inputs_B1E = stepper.start()
    limit = int(lengths_B.max())
    filler = 0 if eos_token_id is None else eos_token_id
    finished_B = torch.zeros_like(lengths_B, dtype=torch.bool)
    written: list[Tensor] = []
    for t in range(limit):
        state, scores_B1V = stepper.step(state, inputs_B1E, position=t)
        finished_B = finished_B | (t >= lengths_B)
        choice_B = scores_B1V[:, 0].argmax(-1).masked_fill(finished_B, filler)
        written.append(choice_B)
        if eos_token_id is not None:
            finished_B = finished_B | (choice_B == eos_token_id)
            if bool(finished_B.all()):
                break
        inputs_B1E = F.embedding(choice_B[:, None], stepper.embedding_VE)
    tokens_BT = F.pad(torch.stack(written, dim=1), (0, limit - len(written)), value=filler)
    return tokens_BT, written_lengths(tokens_BT[:, None], limit_B=lengths_B, eos_token_id=eos_token_id)[:, 0]
