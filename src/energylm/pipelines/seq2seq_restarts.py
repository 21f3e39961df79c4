"""Train a tagger or translator from several seeds and keep the best on the validation data (goyal2021 §3.3.3, 5.4).

OUTPUT/model/           the best of them, a folder for `Seq2SeqModel.from_pretrained`
OUTPUT/restart-N/       journal and result of each run
OUTPUT/restarts.json    what came of them; its presence means finished

A new network begins with weights of its own in each run; with a warm start the runs differ in data order and coins.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.config.seq2seq_study import RestartsConfig
from energylm.files import read_json, write_json
from energylm.pipelines.seq2seq_train import train_seq2seq
from energylm.training.checkpoint import FOLDER as CHECKPOINTS
from energylm.training.engine import MODEL_FOLDER

RESULT_FILE = "restarts.json"


@dataclass(frozen=True)
class Restarts:
    """`values` are of the number that decides, one a run; the rest is of the run that was kept."""

    values: list[float]
    kept: int
    best_step: int
    validation: dict[str, float]
    parameters: int
    seconds: float  # of all runs

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def train_restarts(config: RestartsConfig, *, output: Path | str) -> Restarts:
    """Runs that are finished are not repeated, one that was interrupted goes on."""
    output = Path(output)
    if (output / RESULT_FILE).exists():
        return Restarts(**read_json(output / RESULT_FILE))
    runs = [train_seq2seq(config.one(n), output=output / f"restart-{n}") for n in range(config.restarts)]
    deciding = config.training.validation
    values = [run.validation[deciding.metric] for run in runs]
    kept = values.index(max(values) if deciding.larger_is_better else min(values))
    model = Seq2SeqModel.from_pretrained(runs[kept].model)
    model.name = output.name
    model.save_pretrained(output / MODEL_FOLDER)
    found = Restarts(
        values=values,
        kept=kept,
        best_step=runs[kept].best_step,
        validation=runs[kept].validation,
        parameters=sum(parameter.numel() for parameter in model.network.parameters()),
        seconds=sum(run.seconds for run in runs),
    )
    write_json(output / RESULT_FILE, found.to_json())
    for run in runs:  # what a killed run would have needed; journals stay
        for leftover in (run.model, run.folder / CHECKPOINTS):
            shutil.rmtree(leftover, ignore_errors=True)
    return found
