"""The counted work of kinds of steps that are no verbs yet. TO BE DELETED WHEN EMPTY: a verb has it as `cost`."""

from collections.abc import Callable
from typing import Any

from energylm.config.base import Config
from energylm.jobs.costs import Counted, Surroundings
from energylm.pipelines.plan_reading import count_discrimination, count_likelihood
from energylm.pipelines.plan_training import count_cloze


def _nothing(config: Config, around: Surroundings) -> Counted:
    return Counted()


COUNTS: dict[str, Callable[[Any, Surroundings], Counted]] = {
    "pretrain mlm": count_cloze,
    "electric": count_cloze,
    "electra": count_cloze,
    "two-tower": count_cloze,
    "discrimination": count_discrimination,
    "likelihood": count_likelihood,
    "grid cells": _nothing,
    "pretrain-costs": _nothing,
}
