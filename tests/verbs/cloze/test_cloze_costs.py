"""Counted work of scoring, reranking and fine-tuning against what torch counts while it is done, on tiny networks."""

import json

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from energylm.data.tokenizer import load_tokenizer
from energylm.jobs import costs
from energylm.jobs.costs import Surroundings
from energylm.jobs.job import Job
from energylm.models.compute import Network
from energylm.verbs import Finetune, Rerank, Score, TrainReranker

TEXTS = [f"the clerk counts {number} boats and the old miller sells seven lamps near the bridge" for number in range(9)]
AROUND = Surroundings({}, {"networks": {}})


@pytest.fixture
def tokens_are_known(monkeypatch):
    """Bytes of a token as they are in these texts: tiny vocabularies are no English."""

    def of(*folders):
        ratios = {}
        for folder in folders:
            encoder = load_tokenizer(folder).backend_tokenizer
            tokens = sum(len(encoder.encode(text, add_special_tokens=False).ids) for text in TEXTS)
            size = AROUND.network(str(folder)).vocabulary_size if len(folders) > 1 else None
            ratios[size] = sum(len(text.encode()) for text in TEXTS) / tokens
        monkeypatch.setattr(costs, "bytes_per_token", lambda size: ratios.get(size) or ratios[None])

    return of


def counted_by_torch(verb, job):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it does not know the CPU's own
        verb.run(job)
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["causal", "masked", "electric"])
def test_scoring(kind, model_folder, masked_folder, electric_folder, tokens_are_known, tmp_path):
    folder = {"causal": model_folder, "masked": masked_folder, "electric": electric_folder}[kind]
    tokens_are_known(folder)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    verb = Score(model=str(folder), source=str(tmp_path / "texts.txt"))
    torchs, counted = counted_by_torch(verb, Job()), verb.cost(AROUND)
    assert counted.flops == pytest.approx(torchs, rel=0.15)
    once = Score(model=str(folder), source=str(tmp_path / "texts.txt")).model_copy(update={"source": "-"})
    assert once.cost(AROUND) is None  # standard input is not there before


def test_a_masked_model_reads_a_text_for_each_token(masked_folder, model_folder, tmp_path):
    """Teeth: the same sizes, read as a model that needs one pass, are far from it."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    network = AROUND.network(str(masked_folder))
    around = Surroundings({"x/pretrain-mlm/model": network, "x/pretrain-electric/model": network}, AROUND.facts)
    masked, electric = (
        Score(model=f"x/pretrain-{kind}/model", source=str(tmp_path / "texts.txt")).cost(around).flops
        for kind in ("mlm", "electric")
    )
    assert masked > 10 * electric


def test_reranking_reads_shared_prefixes_once(model_folder, tokens_are_known, tmp_path):
    tokens_are_known(model_folder)
    lists = {
        f"u{number}": {
            f"hyp_{rank}": {"text": f"{text} and {what}", "score": -rank}
            for rank, what in enumerate(("boats", "maps", "a letter"), start=1)
        }
        for number, text in enumerate(TEXTS)
    }
    (tmp_path / "lists.json").write_text(json.dumps(lists))
    verb = Rerank(model=str(model_folder), files=(str(tmp_path / "lists.json"),), weight=(0.5,))
    torchs, counted = counted_by_torch(verb, Job()), verb.cost(AROUND)
    assert counted.flops == pytest.approx(torchs, rel=0.2)
    apart = [len(hypothesis["text"].encode()) for of in lists.values() for hypothesis in of.values()]
    naive = Network.token_flops(AROUND.network(str(model_folder)), 30) * sum(apart) / costs.bytes_per_token(300)
    assert naive > 1.3 * torchs  # teeth: every hypothesis by itself
    missing = verb.model_copy(update={"files": ("none.json",)})
    assert missing.cost(AROUND) is None


def test_finetuning(bert_folder, tokens_are_known, tmp_path):
    tokens_are_known(bert_folder)
    rows = [f"{text}\t{index % 2}" for index, text in enumerate(TEXTS * 4)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    verb = Finetune.checked(
        {
            "task": "sst2",
            "data": str(tmp_path),
            "init": str(bert_folder),
            "seeds": 2,
            "epochs": 2,
            "training": {"threads": 1, "global_batch": 6},
        }
    )
    torchs, counted = counted_by_torch(verb, Job(output=tmp_path / "run")), verb.cost(AROUND)
    assert counted.flops == pytest.approx(torchs, rel=0.1)
    one_seed = verb.model_copy(update={"seeds": 1}).cost(AROUND)
    assert one_seed.flops == pytest.approx(counted.flops / 2)  # teeth: seeds that were forgotten
    assert verb.model_copy(update={"data": str(tmp_path / "none")}).cost(AROUND) is None


def write_lists(folder):
    """train.json and dev.json, with other references."""
    lists = {
        f"u{number}": {"ref": text, "hyp_1": {"text": f"{text} and", "score": -1}, "hyp_2": {"text": text, "score": -2}}
        for number, text in enumerate(TEXTS)
    }
    for name in ("train", "dev"):
        own = {key: value | {"ref": f"{name} {value['ref']}"} for key, value in lists.items()}
        (folder / f"{name}.json").write_text(json.dumps(own))


@pytest.mark.parametrize("dev", [False, True])
def test_learning_from_lists(dev, bert_folder, tokens_are_known, tmp_path):
    tokens_are_known(bert_folder)
    write_lists(tmp_path)
    training = {"threads": 1, "steps": 6, "global_batch": 2, "validation": {"every_steps": 3}}
    values = {"lists": [str(tmp_path / "train.json")], "init": str(bert_folder), "folds": 3, "validation_share": 0.25}
    given = {"dev": [str(tmp_path / "dev.json")]} if dev else {}
    verb = TrainReranker.checked({**values, "training": training, **given})
    torchs, counted = counted_by_torch(verb, Job(output=tmp_path / "run")), verb.cost(AROUND)
    assert counted.flops == pytest.approx(torchs, rel=0.1)
    assert counted.product == AROUND.network(str(bert_folder))
    folds = TrainReranker.checked({**values, "training": training, "folds": 6}).cost(AROUND)
    assert dev or folds.flops > 1.5 * counted.flops  # teeth: an energy for each fold
    assert verb.model_copy(update={"lists": ("none.json",)}).cost(AROUND) is None
    if not dev:
        unmade = verb.model_copy(update={"also": ("none.json",)}).cost(AROUND)
        assert unmade.flops == counted.flops and "not made yet" in unmade.notes[0]


def test_a_teacher_reads_the_lists_first(bert_folder, model_folder, tokens_are_known, tmp_path):
    """Against what torch counts. Teeth: without the teacher it is half of that; an energy of frequencies costs
    nothing."""
    tokens_are_known(model_folder, bert_folder)
    write_lists(tmp_path)
    values = {
        "lists": [str(tmp_path / "train.json")],
        "dev": [str(tmp_path / "dev.json")],
        "init": str(bert_folder),
        "validation_share": 0,
        "training": {"threads": 1, "steps": 2, "global_batch": 2},
    }
    verb = TrainReranker.checked(values | {"teacher": str(model_folder)})
    torchs, counted = counted_by_torch(verb, Job(output=tmp_path / "run")), verb.cost(AROUND)
    assert counted.flops == pytest.approx(torchs, rel=0.2)
    assert TrainReranker.checked(values).cost(AROUND).flops < 0.8 * counted.flops
    words = Rerank(model="frequency:words.txt", files=(str(tmp_path / "dev.json"),), weight=(0.5,))
    assert words.cost(AROUND).flops == 0


def test_an_energy_of_lists_reads_once_and_kept_scores_cost_nothing(masked_folder, model_folder, tmp_path):
    """Teeth: by the look of its network it would be a masked model, which reads a text for each of its tokens."""
    (tmp_path / "lists.json").write_text(json.dumps({"u": {"hyp_1": {"text": TEXTS[0], "score": -1}}}))
    network = AROUND.network(str(masked_folder))
    around = Surroundings({"x/rerank-train/model": network, "x/pretrain-mlm/model": network}, AROUND.facts)

    def cost(model, **values):
        return Rerank.checked(
            {"model": model, "files": [str(tmp_path / "lists.json")], "weight": [0.5], **values}
        ).cost(around)

    assert cost("x/pretrain-mlm/model").flops > 10 * cost("x/rerank-train/model").flops > 0
    assert cost("x/rerank-train/model", scores=["x/other"]).flops == 0
    alone, after = (cost(str(model_folder), context=context).flops for context in (0, 50))
    assert after > 3 * alone  # 50 words before a list are read, too
