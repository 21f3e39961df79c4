r"""A conditional masked language model: a transformer reads the source, a bidirectional one fills in the target.

    h(y_\I, x)          decoder states at the hidden positions I, given the source x and all other target tokens
    f(v, h)             = e(v)·h + b(v)                          one embedding for sources, targets and outputs
    P(T | x)            = softmax over offsets T − S at a position of its own before the source

                                                       Ghazvininejad et al. 2019, §2; the model of Goyal 2021, §6.5

The target's length is known before its tokens, so the decoder can also know where it is: attention has a learned bias
for each distance, the same beyond `reach`,

    a_ts ∝ exp(q_t·k_s / √d + b(distance of t and s))        b learned for each head

Within a sequence the distance is t − s. From target position t (of T) to source position s (of S) it is that of
(t + ½)·S/T − ½, where t would lie if both sides had the same order, to s. Lengths are those of each row, not of the
padded batch, so padding changes nothing. Heads start with a preference for one distance each: the same, the next, the
previous position; the last for none. A network that has to find out about neighbours and word order by itself learns
little in the minutes of a small run. Layers are normalised on entry.

Relations  `masked` gives its conditionals to energies and samplers; `training.sequence_pair_task` trains it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel, initialization
from transformers.modeling_outputs import Seq2SeqLMOutput

FAVOURITES = (0, -1, 1)  # distances that the first heads prefer at first
STEEPNESS = 2.0  # of their preference: a position further away starts with e⁻² of the attention


class DistanceAttention(nn.Module):
    """Attention with a learned bias for each distance, −reach … reach, and head."""

    def __init__(self, config: "ConditionalMaskedConfig") -> None:
        super().__init__()
        width, self.heads, self.reach = config.hidden_size, config.num_attention_heads, config.reach
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.bias = nn.Embedding(2 * self.reach + 1, self.heads)

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

    positions_RQ: Tensor | None  # None: every position asks
    target_distance_RQT: Tensor
    target_real_RT: Tensor
    source_distance_RQS: Tensor
    source_real_RS: Tensor

    @classmethod
    def of(cls, lengths_R: Tensor, source_lengths_R: Tensor, *, target: int, source: int) -> "View":
        """All of `target` positions ask; the memory has `source` positions, the first of which is the length's."""
        device = lengths_R.device
        target_T, source_S = torch.arange(target, device=device), torch.arange(source, device=device)
        # The position in the source that lies on the diagonal, whatever the padding of either side.
        ratio_R1 = (source_lengths_R / lengths_R)[:, None]
        diagonal_RT = ((target_T + 0.5) * ratio_R1 - 0.5).round().long()
        return cls(
            positions_RQ=None,
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
        chosen_first_RT = (~chosen_RT).to(torch.uint8).argsort(dim=1, stable=True)  # in their order
        positions_RQ = chosen_first_RT[:, :most]
        return self._only(positions_RQ), torch.arange(most, device=chosen_RT.device) < count_R[:, None]

    def _only(self, positions_RQ: Tensor) -> "View":
        """The same with other positions that ask."""

        def picked(distance: Tensor) -> Tensor:
            rows = distance.expand(len(positions_RQ), -1, -1)
            return rows.gather(1, positions_RQ[..., None].expand(-1, -1, distance.shape[-1]))

        return View(
            positions_RQ,
            picked(self.target_distance_RQT),
            self.target_real_RT,
            picked(self.source_distance_RQS),
            self.source_real_RS,
        )

    def at_queries(self, states_RTD: Tensor) -> Tensor:
        if self.positions_RQ is None:
            return states_RTD
        return states_RTD.gather(1, self.positions_RQ[..., None].expand(-1, -1, states_RTD.shape[-1]))


class ConditionalMaskedConfig(PreTrainedConfig):
    """Sizes as `energylm pretrain cmlm` takes them (`network`), under transformers' names."""

    model_type = "energylm_conditional_masked"
    is_encoder_decoder = True

    vocab_size: int = 4096
    hidden_size: int = 128
    encoder_layers: int = 2
    decoder_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 512
    dropout: float = 0.1
    max_position_embeddings: int = 64  # the longest source, and the longest target
    reach: int = 16  # distances beyond it count alike


@dataclass(frozen=True)
class SourceStates:
    """Sources that were read: B of them, S positions, the first of which stands for the length."""

    states_BSD: Tensor
    lengths_B: Tensor  # of the sources alone

    def pick(self, rows: Tensor) -> "SourceStates":
        """Some of them, in any order, without columns that none of them uses."""
        lengths_B = self.lengths_B[rows]
        return SourceStates(self.states_BSD[rows, : int(lengths_B.max()) + 1], lengths_B)


class FeedForward(nn.Sequential):
    def __init__(self, config: ConditionalMaskedConfig) -> None:
        super().__init__(
            nn.LayerNorm(config.hidden_size),
            nn.Linear(config.hidden_size, config.intermediate_size),
            nn.GELU(),
            nn.Linear(config.intermediate_size, config.hidden_size),
            nn.Dropout(config.dropout),
        )


class EncoderBlock(nn.Module):
    def __init__(self, config: ConditionalMaskedConfig) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(config.hidden_size), DistanceAttention(config)
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states_BSD: Tensor, distance_1SS: Tensor, real_BS: Tensor) -> Tensor:
        normed_BSD = self.norm(states_BSD)
        mixed_BSD = self.attention(normed_BSD, self.attention.keys_values(normed_BSD), distance_1SS, real_BS)
        states_BSD = states_BSD + self.dropout(mixed_BSD)
        written_BSD: Tensor = states_BSD + self.feedforward(states_BSD)
        return written_BSD


class DecoderBlock(nn.Module):
    def __init__(self, config: ConditionalMaskedConfig) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(config.hidden_size), DistanceAttention(config)
        self.source_norm, self.source_attention = nn.LayerNorm(config.hidden_size), DistanceAttention(config)
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states_RTD: Tensor, view: View, source: tuple[Tensor, Tensor]) -> Tensor:
        """States of the positions that `view` asks for; `source` are keys and values of the memory, row by row."""
        read_RTD = self.norm(states_RTD)
        query_RQD, normed_RQD = view.at_queries(states_RTD), view.at_queries(read_RTD)
        mixed_RQD = self.attention(
            normed_RQD, self.attention.keys_values(read_RTD), view.target_distance_RQT, view.target_real_RT
        )
        query_RQD = query_RQD + self.dropout(mixed_RQD)
        mixed_RQD = self.source_attention(
            self.source_norm(query_RQD), source, view.source_distance_RQS, view.source_real_RS
        )
        query_RQD = query_RQD + self.dropout(mixed_RQD)
        written_RQD: Tensor = query_RQD + self.feedforward(query_RQD)
        return written_RQD


class ConditionalMaskedLM(PreTrainedModel):
    config_class = ConditionalMaskedConfig
    base_model_prefix = ""
    main_input_name = "input_ids"

    def __init__(self, config: ConditionalMaskedConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.length_state = nn.Parameter(torch.empty(width))
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderBlock(config) for _ in range(config.encoder_layers))
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList(DecoderBlock(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.output_bias = nn.Parameter(torch.empty(config.vocab_size))
        self.length_head = nn.Linear(width, 2 * config.max_position_embeddings + 1)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embedding = cast(nn.Embedding, value)  # transformers promises no more than a module

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> SourceStates:
        """Read right-padded sources."""
        first_B1D = self.length_state.expand(len(source_BS), 1, -1)
        states_BSD = self.dropout(torch.cat([first_B1D, self._embedded(source_BS)], dim=1))
        positions_S = torch.arange(states_BSD.shape[1], device=source_BS.device)
        distance_1SS, real_BS = (positions_S[:, None] - positions_S)[None], positions_S <= lengths_B[:, None]
        for block in self.encoder:
            states_BSD = block(states_BSD, distance_1SS, real_BS)
        return SourceStates(self.encoder_norm(states_BSD), lengths_B)

    def length_log_probs(self, memory: SourceStates) -> Tensor:
        """(B, L) log-probabilities of targets of 1 … L tokens."""
        offsets_BO, longest = self.length_head(memory.states_BSD[:, 0]), self.config.max_position_embeddings
        targets_L = torch.arange(1, longest + 1, device=offsets_BO.device)
        chosen_BL: Tensor = offsets_BO.gather(1, targets_L - memory.lengths_B[:, None] + longest)
        return chosen_BL.log_softmax(-1)

    def logits_at(
        self,
        tokens_RT: Tensor,
        lengths_R: Tensor,
        chosen_RT: Tensor,
        memory: SourceStates,
        *,
        source_R: Tensor | None = None,
    ) -> Tensor:
        """(N, V) logits at the chosen positions, row by row; hidden tokens hold the mask token. Row r reads number
        `source_R[r]` of the sources in `memory`; without that, row r reads number r."""
        states_RTD = self.dropout(self._embedded(tokens_RT))
        source_lengths_R = memory.lengths_B if source_R is None else memory.lengths_B[source_R]
        view = View.of(lengths_R, source_lengths_R, target=tokens_RT.shape[1], source=memory.states_BSD.shape[1])
        blocks = cast("Iterable[DecoderBlock]", self.decoder)  # a ModuleList does not say of what
        for number, block in enumerate(blocks, start=1):
            source = block.source_attention.keys_values(memory.states_BSD)  # once, however many rows share a source
            if source_R is not None:
                source = (source[0][source_R], source[1][source_R])
            if number == len(self.decoder):  # the last layer is needed where something is chosen only
                view, is_chosen_RQ = view.at_chosen(chosen_RT)
            states_RTD = block(states_RTD, view, source)
        return self.logits(states_RTD[is_chosen_RQ])

    def logits(self, states_ND: Tensor) -> Tensor:
        return F.linear(self.norm(states_ND), self.embedding.weight, self.output_bias)

    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Seq2SeqLMOutput:
        """Logits (B, T, V) at every position of the targets, read as they are; both sides right-padded."""
        source_B, target_B = (
            torch.full((len(ids),), ids.shape[1], device=ids.device) if mask is None else mask.sum(-1)
            for ids, mask in ((input_ids, attention_mask), (decoder_input_ids, decoder_attention_mask))
        )
        every_BT = torch.ones_like(decoder_input_ids, dtype=torch.bool)
        logits_NV = self.logits_at(decoder_input_ids, target_B, every_BT, self.encode(input_ids, source_B))
        logits_BTV = logits_NV.view(*decoder_input_ids.shape, -1)
        return Seq2SeqLMOutput(logits=logits_BTV)

    def _embedded(self, tokens_RT: Tensor) -> Tensor:
        embedded_RTD: Tensor = self.embedding(tokens_RT) * self.config.hidden_size**0.5
        return embedded_RTD

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, nn.Linear):  # so that a narrow network's layers are heard from the first step on
            initialization.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, DistanceAttention):
            initialization.copy_(module.bias.weight, module.nearness())
        elif isinstance(module, ConditionalMaskedLM):
            initialization.normal_(module.embedding.weight, std=self.config.hidden_size**-0.5)
            initialization.normal_(module.length_state, std=1.0)
            initialization.zeros_(module.output_bias)


def register() -> None:
    """Teach transformers' Auto classes this architecture; calling it again changes nothing."""
    AutoConfig.register(ConditionalMaskedConfig.model_type, ConditionalMaskedConfig, exist_ok=True)
    AutoModelForSeq2SeqLM.register(ConditionalMaskedConfig, ConditionalMaskedLM, exist_ok=True)
