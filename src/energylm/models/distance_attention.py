"""Attention that knows distances: in a target, and between a target and its source along the diagonal.

    a_ts ∝ exp(q_t·k_s / √d + b(distance of t and s))        b learned for each head, the same beyond `reach`

Within a sequence the distance is t − s. From target position t (of T) to source position s (of S) it is that of
(t + ½)·S/T − ½, where t would lie if both sides had the same order, to s. Lengths are those of each row, not of the
padded batch, so padding changes nothing.

Relations  `cmlm` is made of these.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FAVOURITES = (0, -1, 1)  # distances that the first heads prefer at first
STEEPNESS = 2.0  # of their preference: a position further away starts with e⁻² of the attention


class DistanceAttention(nn.Module):
    """Attention with a learned bias for each distance, −reach … reach, and head."""

    def __init__(self, width: int, *, heads: int, reach: int) -> None:
        super().__init__()
        self.heads, self.reach = heads, reach
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.bias = nn.Embedding(2 * reach + 1, heads)

    def keys_values(self, read_RSD: Tensor) -> tuple[Tensor, Tensor]:
        """(R, H, S, D/H) each."""
        keys, values = self.key_value(read_RSD).chunk(2, dim=-1)
        return self._by_head(keys), self._by_head(values)

    def forward(
        self, states_RQD: Tensor, keys_values: tuple[Tensor, Tensor], distance_RQS: Tensor, real_RS: Tensor
    ) -> Tensor:
        """`distance_RQS` may have one row for all."""
        index_RQS = distance_RQS.clamp(-self.reach, self.reach) + self.reach
        bias_RHQS = self.bias(index_RQS).permute(0, 3, 1, 2)
        bias_RHQS = bias_RHQS.masked_fill(~real_RS[:, None, None, :], float("-inf"))
        mixed_RHQD = F.scaled_dot_product_attention(
            self._by_head(self.query(states_RQD)), *keys_values, attn_mask=bias_RHQS
        )
        output_RQD: Tensor = self.output(mixed_RHQD.transpose(1, 2).flatten(2))
        return output_RQD

    def _by_head(self, states_RSD: Tensor) -> Tensor:
        states_RSHD: Tensor = states_RSD.unflatten(-1, (self.heads, -1))  # torch leaves it untyped
        return states_RSHD.transpose(1, 2)

    def nearness(self) -> Tensor:
        """(2·reach + 1, H) how biases start: a head each for the same, the next and the previous position, others flat,
        the last at any rate."""
        distances_N = torch.arange(-self.reach, self.reach + 1.0)
        bias_NH = torch.zeros(len(distances_N), self.heads)
        for head, favourite in zip(range(self.heads - 1), FAVOURITES, strict=False):
            bias_NH[:, head] = -STEEPNESS * (distances_N - favourite).abs()
        return bias_NH


@dataclass(frozen=True)
class View:
    """Which positions ask, and how far everything is from them. The first axis has one row where all rows agree."""

    places_RQ: Tensor | None  # None: every position asks
    target_distance_RQT: Tensor
    target_real_RT: Tensor
    source_distance_RQS: Tensor
    source_real_RS: Tensor

    @classmethod
    def of(cls, lengths_R: Tensor, source_lengths_R: Tensor, *, target: int, source: int) -> "View":
        """All of `target` positions ask; the memory has `source` positions, the first of which is the length's."""
        device = lengths_R.device
        target_T, source_S = torch.arange(target, device=device), torch.arange(source, device=device)
        # The place in the source that lies on the diagonal, whatever the padding of either side.
        ratio_R1 = (source_lengths_R / lengths_R)[:, None]
        diagonal_RT = ((target_T + 0.5) * ratio_R1 - 0.5).round().long()
        return cls(
            places_RQ=None,
            target_distance_RQT=(target_T[:, None] - target_T)[None],
            target_real_RT=target_T < lengths_R[:, None],
            source_distance_RQS=diagonal_RT[..., None] - (source_S - 1),
            source_real_RS=source_S <= source_lengths_R[:, None],
        )

    def at_chosen(self, chosen_RT: Tensor) -> tuple["View", Tensor]:
        """Only the chosen positions ask, as many in each row as the row with most has; and which of these are meant."""
        count_R = chosen_RT.sum(1)
        most = int(count_R.max())
        if most == chosen_RT.shape[1]:
            return self, chosen_RT
        places_RQ = (~chosen_RT).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]  # chosen first, in their order
        return self._only(places_RQ), torch.arange(most, device=chosen_RT.device) < count_R[:, None]

    def _only(self, places_RQ: Tensor) -> "View":
        """The same with other positions that ask."""

        def picked(distance: Tensor) -> Tensor:
            rows = distance.expand(len(places_RQ), -1, -1)
            return rows.gather(1, places_RQ[..., None].expand(-1, -1, distance.shape[-1]))

        return View(
            places_RQ,
            picked(self.target_distance_RQT),
            self.target_real_RT,
            picked(self.source_distance_RQS),
            self.source_real_RS,
        )

    def at_queries(self, states_RTD: Tensor) -> Tensor:
        if self.places_RQ is None:
            return states_RTD
        return states_RTD.gather(1, self.places_RQ[..., None].expand(-1, -1, states_RTD.shape[-1]))
