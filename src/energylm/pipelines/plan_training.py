"""The work of training: language models, masked and other cloze models, energies."""

import math

from energylm.config.pretrain import PretrainClozeConfig, PretrainConfig, PretrainMLMConfig
from energylm.config.train_energy import TrainEnergyConfig
from energylm.config.train_lm import TrainLMConfig
from energylm.config.training import TrainingConfig
from energylm.jobs.costs import MEASURES, Counted, Surroundings, passes_over
from energylm.models.compute import equal_steps, training_flops_per_step
from energylm.models.workload import Network, reading, resident_bytes, updating


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
    counted = _trained(
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
    counted = _trained(network, training, around, rows=1, length=config.window, predicted=share, validated=validated)
    if not isinstance(config, PretrainMLMConfig):  # a noise model or a second tower beside the network
        steps = _steps(training, counted)
        more = steps * training_flops_per_step(config, **sizes) / around.world / counted.quantities["training.flops"]
        for name in MEASURES:
            counted.quantities[f"training.{name}"] *= max(1.0, more)
    counted.product = network
    return counted


def count_energy(config: TrainEnergyConfig, around: Surroundings) -> Counted:
    corpus = around.corpus(config.corpus[0])
    network = around.network(config.init, vocabulary_size=corpus.vocabulary_size, overrides=config.network)
    sources = [around.texts(name) for name in config.negatives]
    length = max(source.length for source in sources)
    contexts = sum(source.contexts for source in sources)
    held_out = sum(around.texts(name).contexts for name in config.validation or ())
    held_out = held_out or config.validation_fraction * contexts
    held_out = min(held_out, config.validation_contexts or held_out)
    validated = held_out / (2 if config.calibrate else 1) * (1 + config.validation_negatives)
    counted = _trained(
        network,
        config.training,
        around,
        rows=1 + config.negatives_per_context,
        length=length,
        predicted=0.0,
        validated=validated,
    )
    texts = held_out * (1 + config.validation_negatives)  # calibration and report at the end
    counted.add("reading", reading(network, rows=texts, length=length, passes=passes_over(texts * length)))
    counted.product = network
    return counted


def _trained(
    network: Network,
    training: TrainingConfig,
    around: Surroundings,
    *,
    rows: float,
    length: float,
    predicted: float,
    validated: float,
) -> Counted:
    """An engine run on `rows` sequences for each member of the batch; `predicted` is the share of tokens at which the
    output layer runs, `validated` the sequences that are read at each validation."""
    counted = Counted()
    steps = _steps(training, counted)
    own = training.global_batch * rows / around.world
    micro = min(own, (training.micro_batch or training.global_batch) * rows)
    update = updating(
        network, rows=own, length=length, predicted=predicted * own * length, passes=max(1.0, own / micro)
    )
    counted.add("training", update * steps)
    if around.world > 1:
        moved = 2 * 4 * network.parameters * (around.world - 1) / around.world  # a ring adds gradients up
        counted.count("network.bytes", moved * steps)
    if every := training.validation.every_steps:
        times = math.ceil(steps / every)
        looked_at = reading(
            network,
            rows=validated / around.world,
            length=length,
            predicted=predicted * validated * length / around.world,
            passes=max(1.0, validated / around.world / micro),
        )
        counted.add("reading", looked_at * times)
    counted.memory_bytes += resident_bytes(
        network, tokens=micro * length, length=length, predicted=predicted * micro * length, learns=True
    )
    counted.disk_bytes = 4 * network.parameters * (2 + 3 * training.checkpoint.keep)
    return counted


def _steps(training: TrainingConfig, counted: Counted) -> int:
    if training.steps is not None:
        if training.validation.can_stop:
            counted.notes.append("may stop early; counted to the end")
        return training.steps
    patience = training.validation.patience_samples or 0
    counted.notes.append("ends when validation stops improving; counted for its patience twice")
    return max(1, round(2 * patience / training.global_batch))
