"""Seq2seq from Python: the bundle's round trip, the line of figure 3.1, and the published files' own numbers."""

from dataclasses import replace

import pytest
import torch

from energylm.bundles.seq2seq_model import Seq2SeqModel
from energylm.bundles.sequence_examples import encode_examples, read_examples
from energylm.config.seq2seq import AlphaConfig, DecodingConfig
from energylm.errors import ConfigError, DataError
from energylm.jobs.job import Job
from energylm.verbs import LineSeq2Seq, TrainSeq2Seq

ROW = "{} NNP I-NP I-PER\n{} VBD I-VP O\n{} NNP I-NP I-LOC\n\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger")
    words = [("Ada", "saw", "Rome"), ("Bo", "left", "Lima"), ("Cy", "knows", "Oslo"), ("Di", "saw", "Lima")]
    (folder / "data").write_text("".join(ROW.format(*each) for each in words * 4))
    verb = TrainSeq2Seq.checked(
        {
            "task": "entities",
            "train": [str(folder / "data")],
            "valid": [str(folder / "data")],
            "network": {"hidden": 12, "source_embedding": 8, "embedding": 4},
            "training": {
                "steps": 30,
                "global_batch": 8,
                "threads": 1,
                "optimizer": {"learning_rate": 0.03},
                "validation": {"every_steps": 15},
            },
        }
    )
    return verb.run(Job(output=folder / "run")), folder / "data", verb


def test_a_model_folder_round_trip(run, tmp_path):
    model = Seq2SeqModel.from_pretrained(run[0].model)
    model.save_pretrained(tmp_path / "again")
    again = Seq2SeqModel.from_pretrained(tmp_path / "again")
    sentences = ["Ada saw Rome", "Bo left unheard-of Oslo"]
    assert again.tags == model.tags and set(model.tags) == {"O", "B-PER", "B-LOC"}
    assert again.decode(sentences, DecodingConfig()) == model.decode(sentences, DecodingConfig())
    assert model.source_ids("Ada unheard-of") == [model.source_ids(["Ada"])[0], model.tokenizer.unk_token_id]
    with pytest.raises(DataError, match="source 2 is empty"):
        model.decode(["Ada", ""], DecodingConfig())


def test_decoding_does_not_depend_on_batches(run):
    model = Seq2SeqModel.from_pretrained(run[0].model)
    sentences = ["Ada saw Rome", "Bo", "Cy knows Oslo Lima", "left Ada"]
    for method in ("greedy", "beam", "soft-beam"):
        decoding = DecodingConfig(method=method)
        assert model.decode(sentences, decoding, batch=1) == model.decode(sentences, decoding, batch=3)


def test_a_finished_run_and_its_plan(run):
    done, _, verb = run
    again = verb.run(Job(output=done.folder))
    assert again.was_finished and again == replace(done, was_finished=True)
    network = Seq2SeqModel.from_pretrained(done.model).network
    assert done.parameters == sum(parameter.numel() for parameter in network.parameters())
    said = verb.check(Job(output=done.folder))
    assert "is finished" in said and "3 output symbols" in said and "(15 epochs)" in said
    assert f"{done.parameters:,} parameters" in said


def test_the_line_of_figure_3_1(run, tmp_path):
    """A sharp relaxation lies on the hard line, a smooth one beside it; the jumps themselves are proved in search/.

    Here a word gives its tag away, so the tags fed back are made loud enough to matter.
    """
    model = Seq2SeqModel.from_pretrained(run[0].model)
    with torch.no_grad():
        model.network.embedding.weight.mul_(20)
    model.save_pretrained(tmp_path / "loud")
    data, alphas = (str(run[1]),), (1.0, 1e6)
    verb = LineSeq2Seq(model=str(tmp_path / "loud"), data=data, limit=4, alphas=alphas, points=9, reach=3.0)
    curves = verb.run(Job(output=tmp_path / "line")).curves
    assert [curve.name for curve in curves.values()] == ["hard", "α = 1", "α = 1e+06"]
    hard, smooth, sharp = (torch.tensor(curve.y) for curve in curves.values())
    assert float((sharp - hard).abs().max()) < 1e-3 < 1e-2 < float((smooth - hard).abs().max())
    assert curves["relaxed_1"].distance == pytest.approx(float((smooth - hard).abs().mean()))
    assert curves["hard"].distance == 0 and curves["hard"].jump == pytest.approx(float(hard.diff().abs().max()))
    assert curves["hard"].jump_twice_as_far == pytest.approx(float(hard[::2].diff().abs().max()))
    assert curves["hard"].x[0] == 0 and curves["hard"].x[-1] == 3 and (tmp_path / "line" / "objectives.png").is_file()


def test_a_line_between_two_models_ends_at_the_other(run):
    verb = LineSeq2Seq(model=str(run[0].model), other=str(run[0].model), data=(str(run[1]),), points=3, reach=1.0)
    assert all(curve.jump < 1e-6 for curve in verb.run().curves.values())
    assert "would draw 3 lines of 3 points from run, on 8 sequences" in verb.check()
    with pytest.raises(ConfigError, match="α came as 0"):
        LineSeq2Seq.checked({"model": "m", "data": ["d"], "alphas": [0]})


def test_alpha_grows_by_epochs():
    assert [AlphaConfig(start=0.5, growth=3, largest=10).at(epoch) for epoch in (0, 1, 2, 3)] == pytest.approx(
        [0.5, 1.5, 4.5, 10]
    )
    assert AlphaConfig(growth=2).at(10**6) == 1e4


def test_the_published_files_are_read(data_folder, run):
    """CoNLL-2003: IOB2 makes nine tags; UD-EWT's training file has 395 composite ones; Multi30k is parallel."""
    entities = read_examples("entities", [str(data_folder / "conll2003" / "eng.testa")])
    assert len(entities) == 3250 and len({tag for tags in entities.targets for tag in tags}) == 9
    tags = read_examples("tags", [str(data_folder / "ud_ewt" / "train.conllu")])
    assert len(tags) == 12_544 and len({tag for each in tags.targets for tag in each}) == 395
    files = [str(data_folder / "multi30k" / f"val.{end}") for end in ("de", "en")]
    assert len(read_examples("translation", files)) == 1014
    with pytest.raises(DataError, match="tags that the training file has not"):
        encode_examples(entities, Seq2SeqModel.from_pretrained(run[0].model))
