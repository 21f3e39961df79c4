"""The work of training masked and other cloze models."""

from energylm.config.pretrain import PretrainClozeConfig, PretrainConfig, PretrainMLMConfig
from energylm.jobs.costs import MEASURES, Counted, Surroundings
from energylm.jobs.training_costs import count_training, counted_steps
from energylm.models.compute import equal_steps, training_flops_per_step
from energylm.models.workload import Network


def count_cloze(config: PretrainConfig, around: Surroundings) -> Counted:
    corpus = around.corpus(config.corpus)
    sizes = {"vocabulary_size": corpus.vocabulary_size}
    network = Network.of_preset(config.preset, config.network, **sizes)
    training, share = config.training, 1.0
    if isinstance(config, PretrainClozeConfig) and config.compute is not None:
        training = training.model_copy(update={"steps": equal_steps(config, config.compute, **sizes)})
    if isinstance(config, PretrainMLMConfig):
        share = config.masking.rate
    validated = 0 if training.validation.every_steps is None else config.validation_windows or 0
    counted = count_training(
        network, training, around, rows=1, length=config.window, predicted=share, validated=validated
    )
    if not isinstance(config, PretrainMLMConfig):  # a noise model or a second tower beside the network
        steps = counted_steps(training, counted)
        more = steps * training_flops_per_step(config, **sizes) / around.world / counted.quantities["training.flops"]
        for name in MEASURES:
            counted.quantities[f"training.{name}"] *= max(1.0, more)
    counted.product = network
    return counted
