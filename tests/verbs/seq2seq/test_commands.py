"""`energylm seq2seq train / decode / evaluate` as a person types them, on made-up sentences; and every bad input."""

import json
import random

import pytest
import torch
from click.testing import CliRunner

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.cli.main import main, program
from energylm.data.nbest import read_lists
from energylm.errors import CheckpointError, ConfigError, DataError, ModelError
from energylm.jobs.job import Job
from energylm.verbs.seq2seq.decode import DecodeSeq2Seq

WHO, WHERE, WHAT = ("Ada", "Bo", "Cy", "Di"), ("Rome", "Lima", "Oslo"), ("saw", "left", "knows")
GERMAN = {"saw": "sah", "left": "verliess", "knows": "kennt"}
SMALL = (
    *("--set", "network.hidden=12", "--set", "network.source_embedding=8", "--set", "network.embedding=4"),
    *("--set", "training.global_batch=8", "--set", "training.threads=1", "--set", "least_count=1"),
    *("--set", "training.optimizer.learning_rate=0.03", "--set", "training.validation.every_steps=30"),
)


def sentences(count, seed):
    """Triples of person, verb and place."""
    chooser = random.Random(seed)
    return [(chooser.choice(WHO), chooser.choice(WHAT), chooser.choice(WHERE)) for _ in range(count)]


def conll(path, triples, place="I-LOC"):
    rows = [f"{who} NNP I-NP I-PER\n{what} VBD I-VP O\n{where} NNP I-NP {place}\n" for who, what, where in triples]
    path.write_text("-DOCSTART- -X- O O\n\n" + "\n".join(rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seq2seq")
    for name, count, seed in (("train", 64, 0), ("valid", 12, 1)):
        triples = sentences(count, seed)
        conll(folder / f"{name}.conll", triples)
        (folder / f"{name}.en").write_text("".join(f"{a} {b} {c}\n" for a, b, c in triples))
        (folder / f"{name}.de").write_text("".join(f"{a} {GERMAN[b]} {c}\n" for a, b, c in triples))
        rows = []
        for a, b, c in triples:
            tags = ("PROPN\tNNP\t_", "VERB\tVBD\tTense=Past", "PROPN\tNNP\t_")
            rows += [
                f"{n}\t{w}\t_\t{t}\t0\troot\t_\t_" for n, (w, t) in enumerate(zip((a, b, c), tags, strict=True), 1)
            ]
            rows.append("")
        (folder / f"{name}.conllu").write_text("\n".join(rows))
    return folder


def invoke(*arguments, **options):
    return CliRunner().invoke(program(), ["seq2seq", *map(str, arguments)], catch_exceptions=False, **options)


def files(folder, *endings):
    return [part for name in ("train", "valid") for end in endings for part in (f"--{name}", folder / f"{name}.{end}")]


@pytest.fixture(scope="module")
def tagger(folder):
    done = invoke(
        "train", "entities", *files(folder, "conll"), "-o", folder / "ner", *SMALL, "--steps", 60,
        "--json", folder / "ner.json",
    )  # fmt: skip
    assert done.exit_code == 0
    return folder / "ner" / "model"


def test_a_tagger_learns_and_is_not_trained_twice(folder, tagger):
    written = json.loads((folder / "ner.json").read_text())
    assert written["validation"]["f1"] == written["validation"]["quality"] > 90 and written["steps"] == 60
    again = invoke("train", "entities", *files(folder, "conll"), "-o", folder / "ner", *SMALL, "--steps", 60)
    assert again.exit_code == 0 and "nothing to do" in again.stderr and "f1" in again.stdout
    with pytest.raises(CheckpointError, match=r"task\.objective\.kind"):
        invoke(
            "train", "entities", *files(folder, "conll"), "-o", folder / "ner", *SMALL, "--steps", 60,
            "--loss", "hinge",
        )  # fmt: skip


@pytest.mark.parametrize("method", ["greedy", "beam", "soft-beam"])
def test_decode_writes_tags_line_by_line(tagger, tmp_path, method):
    (tmp_path / "sources").write_text("Ada saw Rome\n\nBo\n")
    done = invoke("decode", tagger, tmp_path / "sources", "--decode", method, "--alpha", 50)
    if method == "beam":
        assert done.stdout.splitlines()[0] == "B-PER O B-LOC"
    lines = done.stdout.split("\n")
    assert [len(line.split()) for line in lines] == [3, 0, 1, 0]


def test_a_step_of_a_recipe_leaves_its_lines_in_a_file(tagger, tmp_path):
    (tmp_path / "sources").write_text("Ada saw Rome\n\nBo\n")
    verb = DecodeSeq2Seq(model=str(tagger), source=str(tmp_path / "sources"))
    written = verb.run(Job(output=tmp_path / "step")).outputs
    assert (tmp_path / "step" / verb.product).read_text() == "".join(f"{line}\n" for line in written)
    assert [len(line.split()) for line in written] == [3, 0, 1]


def test_evaluate_prints_and_writes(folder, tagger, tmp_path):
    done = invoke(
        "evaluate", tagger, folder / "valid.conll", "--decode", "greedy", "--json", tmp_path / "e.json",
        "-o", tmp_path / "report",
    )  # fmt: skip
    assert done.exit_code == 0 and "seqeval" in done.stdout
    written = json.loads((tmp_path / "e.json").read_text())
    assert (
        written["scores"]["f1"] > 90
        and written["log_z"]["positions"] == 36
        and written["decoding"]["method"] == "greedy"
    )
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.parametrize("objective", ["direct-loss", "hinge", "scheduled-sampling"])
def test_search_aware_training_starts_from_a_trained_model(folder, tagger, tmp_path, objective):
    settings = [
        value for pair in zip(SMALL[::2], SMALL[1::2], strict=True) if "network" not in pair[1] for value in pair
    ]
    done = invoke(
        "train", "entities", *files(folder, "conll"), "-o", tmp_path / "run", *settings, "--steps", 4, "--init", tagger,
        "--loss", objective, "--set", "objective.cost=doubled-outside", "--set", "objective.alpha.growth=1.5",
        "--set", "training.optimizer.learning_rate=0.001",
    )  # fmt: skip
    assert done.exit_code == 0
    model = Seq2SeqModel.from_pretrained(tmp_path / "run" / "model")
    assert model.tags == Seq2SeqModel.from_pretrained(tagger).tags
    assert json.loads((tmp_path / "run" / "training.json").read_text())["result"]["best_validation"]["f1"] > 80


def test_composite_tags(folder, tmp_path):
    done = invoke("train", "tags", *files(folder, "conllu"), "-o", tmp_path / "run", *SMALL, "--steps", 30)
    assert done.exit_code == 0 and "accuracy" in done.stdout
    (tmp_path / "sources").write_text("Ada saw Rome\n")
    shown = invoke("decode", tmp_path / "run" / "model", tmp_path / "sources").stdout
    assert len(shown.split()) == 3 and "/" in shown


@torch.no_grad()
def forced_score(model, source, text):
    """log P(text | source), the end counted, by feeding the text symbol by symbol."""
    ids = torch.tensor([model.source_ids(source)])
    stepper = model.network.stepper(ids, torch.tensor([ids.shape[1]]))
    (state, inputs_B1E), total = stepper.start(), 0.0
    for position, symbol in enumerate(model.target_ids(text)):
        state, scores_B1V = stepper.step(state, inputs_B1E, position=position)
        total += float(scores_B1V[0, 0].log_softmax(-1)[symbol])
        inputs_B1E = stepper.embedding_VE[symbol][None, None]
    return total


def test_lists_need_a_beam(tagger, folder):
    for options in (("--nbest", 4), ("--decode", "greedy", "--nbest", 1)):
        with pytest.raises(ConfigError, match="add --decode beam --beam"):
            invoke("decode", tagger, folder / "valid.de", *options)


def test_translation_from_files_to_bleu(folder, tmp_path):
    done = invoke(
        "train", "translation", *files(folder, "de", "en"), "-o", tmp_path / "run", *SMALL, "--steps", 60,
        "--set", "vocabulary_size=300", "--set", "objective.self_normalization=0.01",
    )  # fmt: skip
    assert done.exit_code == 0 and "bleu" in done.stdout and "log_z" in done.stdout
    model = tmp_path / "run" / "model"
    assert len(invoke("decode", model, folder / "valid.de", "--beam", 2).stdout.splitlines()) == 12
    best = invoke("decode", model, folder / "valid.de", "--beam", 4).stdout.splitlines()
    (tmp_path / "lists").write_text(invoke("decode", model, folder / "valid.de", "--beam", 4, "--nbest", 4).stdout)
    lists = read_lists(tmp_path / "lists", references=folder / "valid.en")
    assert [each.hypotheses[0].text for each in lists] == best and len(lists) == 12
    checked = Seq2SeqModel.from_pretrained(model)
    for source, each in zip((folder / "valid.de").read_text().splitlines(), lists, strict=True):
        assert len({member.text for member in each.hypotheses}) == len(each.hypotheses) <= 4
        for member in each.hypotheses[:2]:  # the network's own log-probability, symbol by symbol
            assert member.score == pytest.approx(forced_score(checked, source, member.text), abs=1e-3)
    assert forced_score(checked, source, "Oslo saw") != pytest.approx(member.score, abs=1e-3)
    result = invoke(
        "evaluate", model, folder / "valid.de", folder / "valid.en", "--normalization", "global",
        "--set", "length_bins=[3,4]", "--json", tmp_path / "e.json",
    )  # fmt: skip
    scores = json.loads((tmp_path / "e.json").read_text())["scores"]
    assert result.exit_code == 0 and len(scores["precisions"]) == 4
    assert [each["sentences"] for each in scores["by_source_length"].values()] == [0, 12, 0]


def test_dry_runs_write_nothing(folder, tagger, tmp_path):
    plan = invoke("train", "entities", *files(folder, "conll"), "-o", tmp_path / "run", *SMALL, "--dry-run")
    assert "would train: entities by cross-entropy" in plan.stdout and "5 output symbols" not in plan.stdout
    assert "3 output symbols" in plan.stdout and "(64 sequences)" in plan.stdout and not (tmp_path / "run").exists()
    assert "would decode standard input by beam" in invoke("decode", tagger, "-", "--dry-run").stdout
    shown = invoke("evaluate", tagger, folder / "valid.conll", "-o", tmp_path / "run", "--dry-run").stdout
    assert "would decode 12 sentences" in shown and not (tmp_path / "run").exists()


def refused(error, match, *arguments):
    with pytest.raises(error, match=match) as raised:
        invoke(*arguments)
    assert "\n" not in str(raised.value)


def test_tag_sets_that_differ_are_refused(folder, tagger, tmp_path):
    other = conll(tmp_path / "other.conll", sentences(4, 2), place="I-GPE")
    refused(DataError, r"other\.conll has 1 tags that the training file has not \(B-GPE\)", "evaluate", tagger, other)
    refused(
        DataError, "set unseen_tags to wrong",
        "train", "entities", "--train", folder / "train.conll", "--valid", other, "-o", tmp_path / "run", *SMALL,
    )  # fmt: skip
    counted = invoke("evaluate", tagger, other, "--set", "unseen_tags=wrong", "--json", tmp_path / "e.json")
    assert counted.exit_code == 0 and json.loads((tmp_path / "e.json").read_text())["scores"]["accuracy"] < 70


def test_bad_columns_and_unequal_files_are_refused(folder, tagger, tmp_path):
    (tmp_path / "short.conll").write_text("Ada NNP I-NP I-PER\nsaw VBD I-VP\n")
    refused(DataError, "line 2 has 3 columns", "evaluate", tagger, tmp_path / "short.conll")
    (tmp_path / "cut.en").write_text("one\n" * 63)
    refused(
        DataError, r"cut\.en ends after 63 lines but .*train\.de goes on",
        "train", "translation", "--train", folder / "train.de", "--train", tmp_path / "cut.en",
        "--valid", folder / "valid.de", "--valid", folder / "valid.en", "-o", tmp_path / "run", *SMALL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        (("--loss", "direct-loss", "--beam", 4), ConfigError, "a soft beam of 4 is wider than its first step"),
        (("--set", "decoding={method: soft-beam, beam: 9}"), ConfigError, "decoding.beam: a soft beam of 9"),
        (("--alpha", 0), ConfigError, r"--alpha: Input should be greater than 0"),
        (("--set", "objective.cost=bleu"), ConfigError, "cost 'bleu' judges whole sequences and is no sum"),
        (("--set", "objective.cost=haming"), ConfigError, "unknown cost 'haming'"),
        (("--set", "training.global_batch=500"), ConfigError, "global_batch is 500 but there are 64 sequences"),
        (("--loss", "hinge", "--set", "objective.self_normalization=1"), ConfigError, "added to cross-entropy"),
        (("--init", "nowhere"), ModelError, "model .nowhere. does not exist"),
        (("--set", "objective.bem=2"), ConfigError, "did you mean 'objective.beam'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(folder, tmp_path, settings, error, match):
    refused(error, match, "train", "entities", *files(folder, "conll"), "-o", tmp_path / "run", *SMALL, *settings)
    assert not (tmp_path / "run").exists()


def test_wrong_numbers_of_files_and_models_are_refused(folder, tagger, tmp_path, model_folder):
    refused(ConfigError, "train came with 1 files; the task translation takes two", "train", "translation",
            *files(folder, "de"), "-o", tmp_path / "run")  # fmt: skip
    refused(DataError, "takes one file, 2 came", "evaluate", tagger, folder / "valid.de", folder / "valid.en")
    refused(DataError, "does not exist", "evaluate", tagger, tmp_path / "none")
    refused(ModelError, "expected 'seq2seq'", "decode", model_folder, "-")
    refused(ModelError, "was trained for entities, not for tags", "train", "tags", *files(folder, "conllu"),
            "-o", tmp_path / "run", "--init", tagger)  # fmt: skip


@pytest.mark.parametrize("arguments", [["seq2seq"], ["seq2seq", "--help"]])
def test_the_group_lists_its_verbs(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["energylm", *arguments])
    with pytest.raises(SystemExit):
        main()
    said = "".join(capsys.readouterr())
    assert "Train taggers and translators" in said and len(said.splitlines()) > 5  # lines, not one line of an error
    assert all(f"  {verb} " in said for verb in ("train", "decode", "evaluate"))
