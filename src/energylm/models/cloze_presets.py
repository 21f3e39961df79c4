"""The networks of Electric, ELECTRA and the two-tower models from the shapes of `config.pretrain`.

Encoders, detectors and generators are transformers' own ELECTRA classes with the form of BERT (`masked_presets`: one
token type, the same spread of first weights), so that what is saved loads with `ElectraForPreTraining` and
`AutoModel`. Noise models have embeddings as wide as the encoder's and share its table (clark2020 app. A):
`share_token_embeddings`.
"""

from transformers import ElectraConfig, PreTrainedModel

from energylm.config.models import TransformerShape
from energylm.models.masked_presets import BERT_SPREAD, BERT_WIDTH
from energylm.models.two_tower import TwoTowerConfig, TwoTowerForCloze

NORM_EPS = 1e-5  # RoBERTa's, as in `masked_presets`


def build_two_tower(
    shape: TransformerShape,
    *,
    vocabulary_size: int,
    max_length: int,
    pad_token_id: int | None,
    embedding_width: int | None = None,
) -> TwoTowerForCloze:
    """Two towers of `shape` each, with weights from torch's global generator (the training engine seeds it)."""
    return TwoTowerForCloze(
        TwoTowerConfig(
            vocab_size=vocabulary_size,
            embedding_size=embedding_width or shape.width,
            hidden_size=2 * shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=_feedforward(shape),
            dropout=shape.dropout,
            max_position_embeddings=max_length,
            initializer_range=_spread(shape),
            layer_norm_eps=NORM_EPS,
            pad_token_id=pad_token_id,
        )
    )


def electra_config(
    shape: TransformerShape,
    *,
    vocabulary_size: int,
    max_length: int,
    pad_token_id: int | None,
    embedding_width: int | None = None,
) -> ElectraConfig:
    """For `ElectraModel`, `ElectraForPreTraining` (the detector) and `ElectraForMaskedLM` (the generator)."""
    return ElectraConfig(
        vocab_size=vocabulary_size,
        embedding_size=embedding_width or shape.width,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=_feedforward(shape),
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=shape.dropout,
        max_position_embeddings=max_length,
        type_vocab_size=1,
        initializer_range=_spread(shape),
        layer_norm_eps=NORM_EPS,
        pad_token_id=pad_token_id,
    )


def share_token_embeddings(main: PreTrainedModel, noise: PreTrainedModel) -> None:
    """Let `noise` read and write with `main`'s table of token embeddings; its own is dropped."""
    noise.set_input_embeddings(main.get_input_embeddings())
    noise.tie_weights()


def _feedforward(shape: TransformerShape) -> int:
    return shape.feedforward_width or 4 * shape.width


def _spread(shape: TransformerShape) -> float:
    return BERT_SPREAD * max(1.0, BERT_WIDTH / shape.width) ** 0.5
