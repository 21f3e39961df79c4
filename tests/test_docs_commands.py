"""What the pages show works: every command and every Python block of the README, CONTRIBUTING and docs is run.

In `bash` and `console` blocks, commands that call `energylm` are run in a folder that holds what the examples name, and
commands that call `make` must name targets that exist; others are not ours. Commands that would take long are run with
`--dry-run` (SLOW). The `python` blocks of a page are run in order, in one namespace.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.xdist_group("docs")  # one worker, so that the prepared folder is made once

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = (
    *("demo", "corpus build", "lm train", "models get", "grid", "detect train", "seq2seq train", "finetune", "serve"),
    "study serve",
    *("study new", "study simulate"),
    *(f"pretrain {family}" for family in ("mlm", "cmlm", "electric", "electra-tt", "electra", "two-tower")),
)
NBEST = {"ref": "a boat", "hyp_1": {"score": -1, "text": "a goat"}, "hyp_2": {"score": -2, "text": "a boat"}}
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", flags=re.MULTILINE | re.DOTALL)


def blocks(markdown: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(markdown) if language in languages]


def commands(markdown: str, program: str) -> list[str]:
    """Commands that call `program`: continued lines joined, prompts and comments dropped, `a && b` taken apart."""
    found = []
    for block in blocks(markdown, "bash", "console"):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            parts = re.sub(r"(^|\s)#.*", "", line).removeprefix("$ ").split("&&")
            found += [part.strip() for part in parts if re.search(rf"^((\w+=\S+ )|.*\| )*{program} ", part.strip())]
    return found


def with_dry_run(command: str) -> str:
    """The command as it is run here: slow verbs get `--dry-run` where the page does not show it."""
    for verb in SLOW:
        if re.search(rf"\benergylm {verb}\b", command) and "--dry-run" not in command:
            return command.replace(f"energylm {verb}", f"energylm {verb} --dry-run", 1)
    return command


def shown(program: str) -> list[str]:
    """Each command of all pages once."""
    return sorted({command for page in PAGES for command in commands(page.read_text(encoding="utf-8"), program)})


def test_commands_are_found_by_hand():
    page = (
        "```bash\nmake setup && make demo   # two\n\nenergylm lm sample m \\\n  --n 2\nENERGYLM_HOME=x energylm demo\n"
        "ls energylm\necho x | energylm lm score m -\n```\n"
        "```console\n$ energylm nope\nfrom energylm\n```\n```text\nenergylm not run\n```\n"
    )
    assert commands(page, "make") == ["make setup", "make demo"]
    assert commands(page, "energylm") == [
        "energylm lm sample m --n 2",
        "ENERGYLM_HOME=x energylm demo",
        "echo x | energylm lm score m -",
        "energylm nope",
    ]
    assert with_dry_run("ENERGYLM_HOME=x energylm demo") == "ENERGYLM_HOME=x energylm demo --dry-run"
    assert with_dry_run("energylm lm train --dry-run") == "energylm lm train --dry-run"


def test_a_verb_that_does_not_exist_is_caught(workshop, run_in):
    """Teeth: what the test below would do with a page that shows a command we do not have."""
    assert run_in(workshop, "energylm lm smaple model").returncode == 2


@pytest.mark.parametrize("command", sorted({with_dry_run(command) for command in shown("energylm")}))
def test_commands_shown_in_the_pages_run(workshop, run_in, command):
    done = run_in(workshop, command)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_make_commands_shown_in_the_pages_are_targets():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {word for command in shown("make") for word in shlex.split(command)[1:] if "=" not in word}
    assert {"setup", "demo", "test", "check"} <= named
    assert named <= targets


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page.read_text("utf-8"), "python")], ids=lambda page: page.name
)
def test_python_shown_in_the_pages_runs(workshop, page, monkeypatch):
    monkeypatch.chdir(workshop)
    namespace = {"__name__": page.stem}
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python"), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def run_in(tmp_path_factory) -> Iterator[Callable[[Path, str], subprocess.CompletedProcess[str]]]:
    """Runs a command line in a folder, with an `energylm` that starts at once (`warm_energylm`)."""
    folder = tmp_path_factory.mktemp("bin")
    path = f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, str(ROOT / "tests" / "warm_energylm.py"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as warm:
        assert warm.stdout is not None and warm.stdout.readline() == "ready\n"

        def run(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
            options = {"cwd": folder, "env": os.environ | {"PATH": path}, "capture_output": True, "text": True}
            return subprocess.run(["bash", "-c", line], check=False, timeout=120, **options)

        yield run
        warm.kill()


@pytest.fixture(scope="module")
def workshop(
    texts_folder,
    corpus_folder,
    model_folder,
    energy_folder,
    masked_folder,
    electric_folder,
    detector_folder,
    detection_folder,
    parallel_folder,
    translator_folder,
    study_toy,
):
    """The folder in which the examples of the pages make sense: texts, a corpus, models of all kinds, small files."""
    folder = texts_folder.parent
    for given, name in (
        ("human.jsonl", "human.jsonl"),
        ("machine.jsonl", "machine.jsonl"),
        ("pairs.json", "detection.json"),
    ):
        shutil.copy(detection_folder / given, folder / name)
    study = blocks((ROOT / "docs" / "generalization.md").read_text(encoding="utf-8"), "yaml")[0]
    (folder / "study.yaml").write_text(study, encoding="utf-8")
    (folder / "sentences.txt").write_text("The clerk counts the boats.\nA sailor mends a bridge.\n", encoding="utf-8")
    (folder / "nbest.json").write_text(json.dumps({f"u{place}": NBEST for place in (1, 2)}), encoding="utf-8")
    (folder / "pairs.jsonl").write_text('{"sentence_good": "A boat.", "sentence_bad": "Boat a."}\n', encoding="utf-8")
    tagged_files(folder)
    task_files(folder)
    study_files(folder, study_toy)
    for file in sorted(parallel_folder.glob("*.??")):
        shutil.copy(file, folder / file.name)
    shutil.copytree(translator_folder, folder / "translator", dirs_exist_ok=True)
    return folder


def study_files(folder: Path, study_toy: ModuleType) -> None:
    """Completions as the page on studies names them, and a study with answers of one rater: `studies/news`."""
    from energylm.data.study_store import StudyStore

    for name in ("base", "joint", "truth"):
        lines = [{"prefix": f"The clerk counts {n}", "completion": f" {name} boats."} for n in range(60)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    study_toy.toy_study(folder / "studies" / "news")
    with StudyStore.open(folder / "studies" / "news") as store:
        study_toy.answer_all(store, store.add_rater("rater", "hash"))


def task_files(folder: Path) -> None:
    """Files of CoLA and SQuAD by their published names, and a sentence model with random weights: `acceptability`."""
    from energylm.bundles.sentence_model import SentenceModel
    from energylm.bundles.task_encoder import TaskEncoder

    (folder / "glue").mkdir(exist_ok=True)
    for name in ("cola_in_domain_train", "cola_in_domain_dev", "cola_out_of_domain_dev"):
        rows = "x\t1\t\tThe clerk counts the boats.\nx\t0\t*\tBoats the counts clerk.\n" * 8
        (folder / "glue" / f"{name}.tsv").write_text(rows, encoding="utf-8")
    (folder / "squad").mkdir(exist_ok=True)
    asked = [
        {"id": "1", "question": "Who counts?", "answers": [{"text": "The clerk", "answer_start": 0}]},
        {"id": "2", "question": "Who mends?", "answers": [], "is_impossible": True},
    ]
    article = {"paragraphs": [{"context": "The clerk counts the boats.", "qas": asked}]}
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        (folder / "squad" / name).write_text(json.dumps({"data": [article]}), encoding="utf-8")
    start = TaskEncoder.from_pretrained(folder / "masked")
    options = {"max_tokens": 32, "pooling": None, "style": "written", "dropout": 0.1}
    SentenceModel.from_encoder(start, task="cola", **options).save_pretrained(folder / "acceptability")


def tagged_files(folder: Path) -> None:
    """A few tagged sentences as the pages name them, and a tagger with random weights: `tagger`."""
    from energylm.bundles.seq2seq_model import Seq2SeqModel
    from energylm.data.tagging import read_entities, tag_names, word_tokenizer
    from energylm.models.lstm_seq2seq import LSTMSeq2Seq, LSTMSeq2SeqConfig

    for name in ("eng.train", "eng.testa", "eng.testb"):
        (folder / name).write_text("Ada NNP I-NP I-PER\nmends VBZ I-VP O\nboats NNS I-NP O\n\n" * 64, encoding="utf-8")
    sentences = read_entities(folder / "eng.train")
    words, tags = word_tokenizer(sentences, least_count=1), dict(enumerate(tag_names(sentences)))
    config = LSTMSeq2SeqConfig(source_vocab_size=len(words), vocab_size=len(tags), hidden_size=4, id2label=tags)
    Seq2SeqModel(LSTMSeq2Seq(config).eval(), words, task="entities", name="tagger").save_pretrained(folder / "tagger")
