"""Which decoder serves a network: shared prefix where that is proven right, else the plain one, said once.

Families in `VERIFIED` are compared with a plain forward pass by the tests, windows shorter than the context included.
Any other family that offers the attention interface is compared on first use; one that differs, breaks, or slides a
window (which a short comparison would not reveal) is served by the plain decoder.
"""

import inspect

import torch
from torch import Tensor
from transformers import PreTrainedModel

from energylm.contracts import Decoder
from energylm.models.gated_convolution import ConvolutionDecoder, GatedConvolutionLM
from energylm.models.plain_decoder import PlainDecoder
from energylm.models.product_decoder import ProductDecoder
from energylm.models.ralm import RalmLM
from energylm.models.shared_prefix import SharedPrefixDecoder
from energylm.progress import say

VERIFIED = frozenset(
    "gpt2 llama qwen2 qwen3 gpt_neox opt phi3 starcoder2 olmo2 mistral gemma2 gemma3_text gpt_oss".split()
)
_CHECK_TOLERANCE = 1e-3  # relative to the largest logit; float32 rounding is a thousand times smaller
_said: set[str] = set()


def decoder_for(network: PreTrainedModel) -> Decoder:
    """The fastest decoder that is right for `network`."""
    if isinstance(network, GatedConvolutionLM):
        return ConvolutionDecoder(network)
    if isinstance(network, RalmLM):
        return ProductDecoder([decoder_for(network.base), decoder_for(network.residual)])
    reason = why_not_shared_prefix(network)
    if reason is None:
        return SharedPrefixDecoder(network)
    family = network.config.model_type
    if family not in _said:
        _said.add(family)
        say(f"energylm: {family} models are sampled by the plain decoder (correct, slower): {reason}")
    return PlainDecoder(network)


def why_not_shared_prefix(network: PreTrainedModel) -> str | None:
    """None if shared-prefix sampling is right for `network`, else the reason in words."""
    if not getattr(network, "_supports_attention_backend", False):
        return "this family does not offer transformers' attention interface"
    if "position_ids" not in inspect.signature(network.forward).parameters:
        return "this family takes no position ids"
    if network.config.model_type in VERIFIED:
        return None
    if getattr(network.config.get_text_config(), "sliding_window", None) is not None:
        return "this family slides an attention window and has not been verified"
    return _self_check(network)


@torch.no_grad()
def _self_check(network: PreTrainedModel) -> str | None:
    """Two contexts of unequal length, two copies, three tokens: logits against a plain forward pass."""
    vocabulary = network.get_output_embeddings().weight.shape[0]
    ids = (torch.arange(9, device=network.device) * 7 + 3) % vocabulary
    contexts = [ids[:6].tolist(), ids[2:5].tolist()]
    continuation = ids[:3]
    decoder = SharedPrefixDecoder(network)
    try:
        prefix, logits_BV = decoder.prefill(contexts)
        state = decoder.fork(prefix, copies=2, max_new_tokens=3)
        steps = [logits_BV.repeat_interleave(2, dim=0)]
        steps += [decoder.step(state, token.expand(4)) for token in continuation]
    except Exception as error:  # whatever an unknown family raises, the plain decoder serves it
        return f"shared-prefix attention failed on it ({type(error).__name__})"
    for row, context in enumerate(contexts):
        sequence = torch.cat([torch.tensor(context, device=ids.device), continuation])
        expected_TV: Tensor = network(input_ids=sequence[None]).logits[0, len(context) - 1 :]
        got_TV = torch.stack([logits[2 * row + 1] for logits in steps])
        if not torch.allclose(got_TV, expected_TV, rtol=0, atol=_CHECK_TOLERANCE * float(expected_TV.abs().max())):
            return "shared-prefix logits differ from a plain forward pass"
    return None
