"""The work of reading texts: cells of a grid."""

from pathlib import Path

from energylm.config.grid import DiscriminationConfig, LikelihoodConfig
from energylm.jobs.costs import TOKENS_AT_ONCE, Counted, Surroundings, passes_over
from energylm.models.workload import reading, resident_bytes


def count_discrimination(config: DiscriminationConfig, around: Surroundings) -> Counted:
    energy, counted = around.network(config.energy), Counted()
    for name in config.negatives:
        texts = around.texts(name)
        rows = texts.contexts * (1 + texts.k) / around.world
        work = reading(
            energy,
            rows=rows,
            length=texts.length,
            predicted=rows * texts.length if _is_likelihood(config.energy) else 0,
            passes=passes_over(rows * texts.length),
        )
        counted.add("reading", work)
    counted.count("windows", sum(around.texts(name).contexts for name in (*config.negatives, *config.trained_on)))
    counted.memory_bytes += resident_bytes(energy, tokens=TOKENS_AT_ONCE, length=64, predicted=0, learns=False)
    return counted


def _is_likelihood(place: str) -> bool:
    return "likelihood" in Path(place).parts  # where the artefact store puts what a step `likelihood` made


def count_likelihood(config: LikelihoodConfig, around: Surroundings) -> Counted:
    network, counted = around.network(config.lm), Counted()
    for name in config.negatives:
        texts = around.texts(name)
        rows = texts.contexts * (1 + texts.k) / around.world
        tokens = rows * texts.length
        work = reading(network, rows=rows, length=texts.length, predicted=tokens, passes=passes_over(tokens))
        counted.add("reading", work)
    counted.product = network
    return counted
