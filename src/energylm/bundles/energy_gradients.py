"""Gradients of an energy by the embeddings of its tokens, whatever its network: `search.TokenGradients`.

    ∇_{e_t} E(x)        e_t = what the network's input embedding gives for token t

The output of the embedding layer (`network.get_input_embeddings()`) is caught on its way and made the leaf of the
graph, so a network needs no second entrance for embeddings: transformers, recurrent networks and bags of tokens alike.
Energies are the calibrated ones; their scale is in the gradient.
"""

from functools import cached_property

import torch
from torch import Tensor, nn

from energylm.bundles.energy_model import EnergyModel
from energylm.errors import ModelError


class EnergyGradients:
    """Token ids are those of the energy's own tokenizer."""

    def __init__(self, energy: EnergyModel) -> None:
        self.energy = energy

    def energies(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        return self.energy.energies(tokens_BT, lengths_B)

    def token_gradients(self, tokens_T: Tensor) -> tuple[float, Tensor]:
        """The energy of one sequence and its gradient (T, D), by one forward and one backward pass."""
        network, caught = self.energy.network, []

        def catch(layer: nn.Module, inputs: object, output_BTD: Tensor) -> Tensor:
            caught.append(output_BTD.detach().requires_grad_())
            return caught[-1]

        tokens_1T = tokens_T.to(self.token_table.device)[None]
        hook = network.get_input_embeddings().register_forward_hook(catch)
        try:
            # cuDNN's recurrent networks have no backward pass in evaluation mode; torch's own have.
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                raw = network(tokens_1T, torch.tensor([len(tokens_T)], device=tokens_1T.device))[0]
        finally:
            hook.remove()
        if len(caught) != 1:
            raise ModelError(
                f"{self.energy.name} reads its token embeddings {len(caught)} times, so there is no one gradient by "
                "them; give an energy whose network embeds its tokens once"
            )
        (gradient_1TD,) = torch.autograd.grad(raw, caught)
        return self.energy.scale * float(raw.detach()) + self.energy.shift, self.energy.scale * gradient_1TD[0]

    @cached_property
    def token_table(self) -> Tensor:
        """(V, D): the embedding layer's output, not its weights: some families scale these."""
        layer = self.energy.network.get_input_embeddings()
        with torch.no_grad():
            table_VD: Tensor = layer(torch.arange(self.energy.vocabulary_size, device=next(layer.parameters()).device))
        return table_VD
