"""Write the table of docs/harness.md: `python docs/harness_table.py docs/harness.md --masked FOLDER --energy FOLDER`.

Tasks are made here from local files under ENERGYLM_DATA: BLiMP's pairs as the harness's own `blimp` has them, and the
sentiment of SST-2's sentences as a choice between two words. Every row is one run of `energylm-lm-eval`, whose files
of samples are compared with those of the harness's own `hf`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from energylm.bundles.known_models import locate
from energylm.config.environment import data_folder
from energylm.tables import Cell, Table, to_markdown

PAIRS = ("anaphor_number_agreement", "determiner_noun_agreement_irregular_2", "wh_questions_subject_gap_long_distance")
SENTIMENT = "sst2_sentiment"
Choice = tuple[str, int, int]  # task, document, choice
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {file}}}}}
validation_split: validation
output_type: multiple_choice
doc_to_text: {text}
doc_to_target: {target}
doc_to_choice: {choices}
metric_list: [{{metric: acc}}]
"""


def write_tasks(folder: Path) -> list[str]:
    """The task files; their names."""
    data = data_folder()
    rows = [line.rsplit("\t", 1) for line in (data / "glue" / "sst2_dev.tsv").read_text(encoding="utf-8").splitlines()]
    sentences = folder / "sst2.jsonl"
    sentences.write_text("".join(json.dumps({"text": text, "label": int(label)}) + "\n" for text, label in rows))
    for name in PAIRS:
        made = {"text": '""', "target": "0", "choices": '"{{[sentence_good, sentence_bad]}}"'}
        file = data / "blimp" / f"{name}.jsonl"
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file, **made), encoding="utf-8")
    asked = {"text": r'"Review: {{text}}\nSentiment:"', "target": "label", "choices": '["negative", "positive"]'}
    (folder / f"{SENTIMENT}.yaml").write_text(TASK.format(name=SENTIMENT, file=sentences, **asked), encoding="utf-8")
    return [*PAIRS, SENTIMENT]


def run(
    model: str, model_args: str, *, tasks: list[str], folder: Path, limit: int
) -> tuple[dict[str, Any], dict[Choice, float]]:
    """What one run says: the results, and every log-likelihood by task, document and choice."""
    with tempfile.TemporaryDirectory() as output:
        program = [str(Path(sys.executable).parent / "energylm-lm-eval")]
        asked = ["--model", model, "--model_args", model_args, "--tasks", ",".join(tasks), "--limit", str(limit)]
        kept = ["--include_path", str(folder), "--output_path", output, "--log_samples"]
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}  # all is here; nobody waits for a network
        subprocess.run([*program, *asked, *kept], check=True, stdout=subprocess.DEVNULL, env=offline)
        (results,) = (json.loads(file.read_text(encoding="utf-8")) for file in Path(output).rglob("results_*.json"))
        likelihoods: dict[Choice, float] = {}
        for task in tasks:
            (file,) = Path(output).rglob(f"samples_{task}_*.jsonl")
            for line in file.read_text(encoding="utf-8").splitlines():
                sample = json.loads(line)
                for choice, ((value, _),) in enumerate(sample["resps"]):
                    likelihoods[task, sample["doc_id"], choice] = float(value)
    return results, likelihoods


def greatest_difference(ours: Mapping[Choice, float], theirs: Mapping[Choice, float]) -> float:
    if ours.keys() != theirs.keys():
        raise SystemExit("the two runs have not scored the same choices")
    return max(abs(ours[key] - theirs[key]) for key in ours)


def tables(masked: str, energy: str, *, limit: int, n: int) -> Iterator[Table]:
    """The table as it grows, row by row."""
    lm = "smollm2-135m"
    joint = f"pretrained={lm},energy={energy},n={n}"
    causal = {
        f"`hf`, {lm}": ("hf", f"pretrained={locate(lm)},dtype=float32"),
        lm: ("energylm", f"pretrained={lm}"),
    }
    others = {
        "masked, from minilm-l6": ("energylm", f"pretrained={masked}"),
        f"joint of {lm}, lower end": ("energylm", f"{joint},end=lower"),
        f"joint of {lm}, upper end": ("energylm", f"{joint},end=upper"),
    }
    how = (
        f"accuracy of the first {limit} documents of each task; log-likelihoods in nats over all choices, for the "
        f"masked model pseudo-log-likelihoods; log Z of the joint model from {n} samples"
    )
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as temporary:
        tasks, theirs = write_tasks(Path(temporary)), None
        columns = ["model", *(f"`{task}`" for task in tasks), "mean log-likelihood", "greatest difference from `hf`"]
        for name, (model, model_args) in (causal | others).items():
            results, told = run(model, model_args, tasks=tasks, folder=Path(temporary), limit=limit)
            theirs = theirs or told
            accuracies = [results["results"][task]["acc,none"] for task in tasks]
            difference = greatest_difference(told, theirs) if name in causal else None
            rows.append([name, *accuracies, sum(told.values()) / len(told), difference])
            print(f"{name}: done", file=sys.stderr)
            yield Table(columns, rows, convention=how)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--masked", required=True)
    parser.add_argument("--energy", required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("-n", type=int, default=64)
    given = parser.parse_args()
    for table in tables(given.masked, given.energy, limit=given.limit, n=given.n):
        made = f"<!-- table -->\n{to_markdown(table)}<!-- /table -->"
        text = given.page.read_text(encoding="utf-8")
        page = re.sub(r"<!-- table -->.*<!-- /table -->", lambda _, made=made: made, text, flags=re.DOTALL)
        given.page.write_text(page, encoding="utf-8")
