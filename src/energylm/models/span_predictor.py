"""Answers as spans of a context: a start, an end given that start, and whether there is an answer at all.

    log P(s)        = log softmax_t( u · h_t )                                      over the context
    log P(e | s)    = log softmax_t( v · gelu(V [h_t ; h_s]) )                      over the context
    no answer       = w · gelu(W [h_1 ; Σ_s P(s) h_s])                              log-odds

clark2020 app. B: start and end are predicted jointly, after XLNet, with a classifier of answerability for SQuAD 2.0. In
training the end is given the gold start.

Relations  `search.span_beam` finds the best span; `training.span_task` is the loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import AutoModelForQuestionAnswering
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from energylm.models.headed_encoder import HeadedEncoder, HeadedEncoderConfig, register_config


@dataclass(frozen=True)
class SpanReading:
    """What one pass over windows gives; ends are scored from it for any starts."""

    states_BTD: Tensor
    allowed_BT: Tensor
    start_log_prob_BT: Tensor  # −∞ outside the context
    no_answer_log_odds_B: Tensor


class SpanPredictor(HeadedEncoder):
    def _build_head(self, width: int) -> None:
        hidden = self.config.span_width
        self.start = nn.Linear(width, 1)
        self.end_hidden = nn.Linear(2 * width, hidden)
        self.end = nn.Linear(hidden, 1)
        self.answerable_hidden = nn.Linear(2 * width, hidden)
        self.answerable = nn.Linear(hidden, 1)

    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> SpanReading:
        """Starts and answerability of right-padded windows; spans lie where `context_mask` (B, T) is true, or anywhere
        in the text where it is not given."""
        states_BTD = self.dropout(self.states(input_ids, attention_mask, token_type_ids))
        given = context_mask if context_mask is not None else attention_mask
        allowed_BT = torch.ones_like(input_ids, dtype=torch.bool) if given is None else given.bool()
        start_BT = self.start(states_BTD)[..., 0].float().masked_fill(~allowed_BT, -torch.inf).log_softmax(-1)
        likely_start_BD = torch.einsum("bt,btd->bd", start_BT.exp().to(states_BTD.dtype), states_BTD)
        summary_B2D = torch.cat([states_BTD[:, 0], likely_start_BD], dim=-1)
        no_answer_B = self.answerable(gelu(self.answerable_hidden(summary_B2D)))[..., 0]
        return SpanReading(states_BTD, allowed_BT, start_BT, no_answer_B.float())

    def end_log_probs(self, reading: SpanReading, starts_BK: Tensor) -> Tensor:
        """(B, K, T) log P(e | s) for K starts of each row; −∞ outside the context. Ends before the start are not
        excluded here: the beam does that."""
        states_BTD = reading.states_BTD
        rows_B1 = torch.arange(len(states_BTD), device=states_BTD.device)[:, None]
        start_BKD = states_BTD[rows_B1, starts_BK]
        # The layer over [h_t ; h_s] is the sum of a part of t and a part of s: neither is computed more than once.
        of_end_WD, of_start_WD = self.end_hidden.weight.chunk(2, dim=1)
        ends_BTW = nn.functional.linear(states_BTD, of_end_WD, self.end_hidden.bias)
        starts_BKW = nn.functional.linear(start_BKD, of_start_WD)
        logits_BKT: Tensor = self.end(gelu(ends_BTW[:, None] + starts_BKW[:, :, None]))[..., 0].float()
        return logits_BKT.masked_fill(~reading.allowed_BT[:, None], -torch.inf).log_softmax(-1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Log-probabilities of starts, and of ends given the likeliest start."""
        reading = self.read(input_ids, attention_mask, token_type_ids, context_mask)
        best_B1 = reading.start_log_prob_BT.argmax(-1, keepdim=True)
        start_BT, end_BT = reading.start_log_prob_BT, self.end_log_probs(reading, best_B1)[:, 0]
        # transformers says FloatTensor
        return QuestionAnsweringModelOutput(start_logits=start_BT, end_logits=end_BT)  # type: ignore[arg-type]


def register() -> None:
    """Teach transformers' Auto classes this network; calling it again changes nothing."""
    register_config()
    AutoModelForQuestionAnswering.register(HeadedEncoderConfig, SpanPredictor, exist_ok=True)
