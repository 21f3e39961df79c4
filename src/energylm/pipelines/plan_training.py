"""The work of training: language models, masked and other cloze models."""

from energylm.config.pretrain import PretrainClozeConfig, PretrainConfig, PretrainMLMConfig
from energylm.config.train_lm import TrainLMConfig
from energylm.jobs.costs import MEASURES, Counted, Surroundings
from energylm.jobs.training_costs import count_training, counted_steps
from energylm.models.compute import equal_steps, training_flops_per_step
from energylm.models.workload import Network


def count_lm(config: TrainLMConfig, around: Surroundings) -> Counted:
    corpus = around.corpus(config.corpus)
    sizes = {"vocabulary_size": corpus.vocabulary_size}
    network = around.network(config.pretrained or config.preset, overrides=config.network, **sizes)
    if config.base is not None:
        base = around.network(config.base)
        if config.kind == "ralm":
            network = Network(**{**vars(network), "read_only": base})
        else:
            network = network.widened(base.parameters + network.parameters)
    validated = 0 if config.training.validation.every_steps is None else config.validation_windows or 0
    counted = count_training(
        network, config.training, around, rows=1, length=config.window, predicted=1.0, validated=validated
    )
    counted.product = network
    return counted


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
