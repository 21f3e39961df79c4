"""The work of a run of the training engine, whatever it trains: counted for `energylm plan`."""

import math

from energylm.config.training import TrainingConfig
from energylm.jobs.costs import Counted, Surroundings
from energylm.models.workload import Network, reading, resident_bytes, updating


def count_training(
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
    steps = counted_steps(training, counted)
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


def counted_steps(training: TrainingConfig, counted: Counted) -> int:
    """Updates of a run; what is uncertain about them is noted."""
    if training.steps is not None:
        if training.validation.can_stop:
            counted.notes.append("may stop early; counted to the end")
        return training.steps
    patience = training.validation.patience_samples or 0
    counted.notes.append("ends when validation stops improving; counted for its patience twice")
    return max(1, round(2 * patience / training.global_batch))
