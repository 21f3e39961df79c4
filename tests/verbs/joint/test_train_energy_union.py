"""Energies trained on unions: both sides of a window, several generators and corpora; what must not be mixed."""

import numpy as np
import pytest

from energylm.bundles.energy_model import EnergyModel
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.model_folder import weights_sha256
from energylm.bundles.residual_model import ResidualModel
from energylm.data.corpus import Corpus
from energylm.data.negatives import Negatives
from energylm.data.windows import Windows
from energylm.errors import ConfigError, DataError, VocabularyMismatch
from energylm.jobs.job import Job
from energylm.models.causal import CausalLanguageModel
from energylm.training.energy_task import EnergyTask
from energylm.verbs import BuildCorpus
from energylm.verbs.joint.energy_inputs import encoding_for, open_data
from energylm.verbs.joint.negatives import MakeNegatives
from energylm.verbs.joint.train_energy import TrainEnergy

LENGTH = 24


@pytest.fixture(scope="module")
def backwards_folder(model_folder, tmp_path_factory):
    """The same network read from right to left, with other weights."""
    lm = LanguageModel.from_pretrained(model_folder)
    lm.model.network.get_output_embeddings().weight.data += 0.01
    model = CausalLanguageModel(
        lm.model.network, start_token_id=lm.eos_token_id, eos_token_id=lm.eos_token_id, direction="right-to-left"
    )
    folder = tmp_path_factory.mktemp("backwards") / "model"
    LanguageModel(model, lm.tokenizer, name="backwards").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def second_corpus(corpus_folder, tmp_path_factory):
    """Other texts in the first corpus's tokens."""
    folder = tmp_path_factory.mktemp("second")
    (folder / "texts").mkdir()
    for number in range(12):
        text = f"Number {number}: a bridge mends the winter coats, an old map counts seven lamps. " * (3 + number % 4)
        (folder / "texts" / f"{number:02}.txt").write_text(text)
    config = BuildCorpus(
        sources=(str(folder / "texts"),), tokenizer=str(corpus_folder / "tokenizer"), valid_fraction=0.2
    )
    config.run(Job(output=folder / "corpus"))
    return folder / "corpus"


@pytest.fixture(scope="module")
def made(corpus_folder, second_corpus, model_folder, backwards_folder, tmp_path_factory):
    """Negatives by name: suffixes, prefixes, of the second corpus; each of two splits."""
    folder = tmp_path_factory.mktemp("negatives")
    sides = {"suffix": model_folder, "prefix": backwards_folder}

    def make(name, corpus=corpus_folder, side="suffix", k=3, length=LENGTH, split="train", **values):
        config = MakeNegatives(
            corpus=str(corpus), language_model=str(sides[side]), side=side, k=k, length=length, split=split, **values
        )
        config.run(Job(output=folder / name))
        return str(folder / name)

    cuts = {"prefix_tokens": (12, 16)}
    for split in ("train", "valid"):
        make(f"suffix-{split}", split=split, contexts=60, **cuts)
        make(f"prefix-{split}", split=split, side="prefix", k=2, contexts=30, **cuts)
        make(f"second-{split}", split=split, corpus=second_corpus, k=4, prefix_tokens=(8,))
    make("longer", length=32, prefix_tokens=(8,))
    make("overlapping", prefix_tokens=(8,), stride=12, contexts=20)
    return folder


@pytest.fixture
def config(corpus_folder, made):
    def build(*names, **values):
        training = {"steps": 12, "global_batch": 8, "threads": 1, "optimizer": {"learning_rate": 5e-3}}
        defaults = {
            "negatives": [str(made / name) for name in names],
            "corpus": str(corpus_folder),
            "init": "linear",
            "validation_fraction": 0.3,
        }
        training |= values.pop("training", {})
        return TrainEnergy.checked(defaults | {"training": training} | values, origin="test")

    return build


def task_of(settings, **options):
    """The task as the pipeline makes it, apart from the network."""
    data = open_data(settings)
    encode = encoding_for(type("Reads", (), {"reads": "tokens"}), data.corpus)
    model = type("Model", (), {})
    return data, EnergyTask(
        model, data.train, encode=encode, seed=settings.training.seed, global_batch=8, save_model=None, **options
    )


def test_one_folder_may_stand_alone_or_in_a_list(config, made, corpus_folder):
    alone = config(negatives=str(made / "suffix-train"), validation=str(made / "suffix-valid"))
    assert alone.negatives == (str(made / "suffix-train"),) and alone.corpus == (str(corpus_folder),)
    assert alone == config("suffix-train", corpus=[str(corpus_folder)], validation=[str(made / "suffix-valid")])
    assert TrainEnergy.model_validate_json(alone.model_dump_json()) == alone


def test_an_epoch_visits_every_context_of_every_source_once(config):
    """… so that each source has its share; a batch is a pure function of (seed, step), cut as one likes."""
    data, task = task_of(config("suffix-train", "prefix-train"), negatives_per_context=2)
    _, contexts = task.context_order(np.arange(len(data.train)))
    assert sorted(contexts) == list(range(len(data.train)))
    sizes = [len(part) for part in data.train.parts]
    assert min(sizes) > 5 and sum(sizes) == len(data.train)
    early = contexts[: len(contexts) // 2] < sizes[0]  # neither source comes first
    assert 0.15 < abs(early.mean()) < 0.95 and abs(early.mean() - sizes[0] / len(data.train)) < 0.25
    whole, again = task.batch(3, range(8)), task_of(config("suffix-train", "prefix-train"), negatives_per_context=2)[1]
    pieces = [again.batch(3, rows)["tokens_ST"] for rows in (range(0, 3), range(3, 8))]
    assert np.array_equal(np.concatenate(pieces), whole["tokens_ST"])


def test_suffixes_and_prefixes_lie_where_they_were_generated(config, corpus_folder):
    """Real text is a window of the corpus; a suffix negative shares its beginning, a prefix negative its end."""
    data = open_data(config("suffix-train", "prefix-train"))
    windows = Windows(Corpus.open(corpus_folder), "train", length=LENGTH)
    for side, part in zip(("suffix", "prefix"), data.train.parts, strict=True):
        negatives = data.sources[0 if side == "suffix" else 1].negatives
        real, generated = part.sequences(np.array([0]), np.array([[1]]))
        row = negatives.rows(part.rows[:1])
        cut = int(row.context_length_B[0])
        assert real == windows.gather(row.window_B)[0].tolist() and len(generated) == LENGTH
        kept = slice(None, cut) if side == "suffix" else slice(LENGTH - cut, None)
        assert generated[kept] == real[kept] and generated != real


def test_what_is_held_out_of_one_source_is_held_out_of_all(config):
    """Both sides continue windows of one split: no window is learnt from in one and judged in the other."""
    data = open_data(config("suffix-train", "prefix-train"))
    windows = {
        purpose: {
            int(w) for s, part in zip(data.sources, union.parts, strict=True) for w in s.negatives.windows[part.rows]
        }
        for purpose, union in (("train", data.train), ("report", data.report), ("calibration", data.calibration))
    }
    assert all(windows.values())
    assert not windows["train"] & windows["report"] and not windows["train"] & windows["calibration"]
    assert not windows["report"] & windows["calibration"]
    shared = set(data.sources[0].negatives.windows) & set(data.sources[1].negatives.windows)
    assert shared & windows["report"] and shared & windows["train"]  # the check has something to find


def test_validation_contexts_are_capped_in_proportion(config):
    every = open_data(config("suffix-train", "prefix-train"))
    capped = open_data(config("suffix-train", "prefix-train", validation_contexts=10))
    count = [len(a) + len(b) for a, b in zip(capped.report.parts, capped.calibration.parts, strict=True)]
    whole = [len(a) + len(b) for a, b in zip(every.report.parts, every.calibration.parts, strict=True)]
    assert sum(count) == 10 and count[0] == pytest.approx(10 * whole[0] / sum(whole), abs=1)


@pytest.mark.parametrize(
    ("init", "objective"), [("linear", "nce"), ("bilstm-tiny", "most-offending"), ("bit-tiny", "ranking")]
)
def test_every_energy_and_every_loss_learns_from_a_union(
    config, made, corpus_folder, second_corpus, model_folder, tmp_path, init, objective
):
    """The generators know nothing, so real text is easy to tell on contexts that no one has seen."""
    shape = {"linear": {}, "bilstm-tiny": {"layers": 1, "width": 16}, "bit-tiny": {"layers": 1, "width": 32}}[init]
    settings = config(
        "suffix-train",
        "second-train",
        corpus=[str(corpus_folder), str(second_corpus)],
        validation=[str(made / "suffix-valid"), str(made / "second-valid")],
        init=init,
        network=shape,
        pooling="first" if init == "bit-tiny" else None,
        objective=objective,
        margin=0.5,
        negatives_per_context=3,
        training={"steps": 40, "optimizer": {"learning_rate": 0.1 if init == "linear" else 1e-2}},
    )
    said = settings.check(Job(output=tmp_path / "run"))
    assert "contexts of 2 sources" in said and ("ranking with margin 0.5" in said) == (objective == "ranking")
    run = settings.run(Job(output=tmp_path / "run"))
    assert run.accuracy > 0.8 and run.precision_at_1 > 0.8, (run.accuracy, run.precision_at_1)
    energy = EnergyModel.from_pretrained(run.model)
    kind = {"linear": ("linear", "sum"), "bilstm-tiny": ("bilstm", "mean"), "bit-tiny": ("bit", "first")}[init]
    assert (energy.network.kind, energy.network.pooling) == kind
    sources = energy.provenance["sources"]
    assert [source["corpus"] for source in sources] == ["corpus", "corpus"]
    assert [source["corpus_identity"] for source in sources] == [
        Corpus.open(folder).manifest.identity for folder in (corpus_folder, second_corpus)
    ]
    assert {source["generator"]["sha256"] for source in sources} == {weights_sha256(model_folder)}
    assert energy.provenance["loss"] == objective
    page = (tmp_path / "run" / "results.md").read_text()
    assert "P@1" in page and ("margin 0.5" in page) == (objective == "ranking") and page.count("negatives each") >= 2
    sample = ResidualModel(LanguageModel.from_pretrained(model_folder), energy).sample("The", n=5, max_new_tokens=3)
    assert (f"trained with the {objective} loss" in (sample.warning or "")) == (objective != "nce")


def test_an_energy_of_several_generators_is_doubted(config, model_folder, backwards_folder, tmp_path):
    run = config("suffix-train", "prefix-train").run(Job(output=tmp_path / "run"))
    names = [source["generator"]["name"] for source in EnergyModel.from_pretrained(run.model).provenance["sources"]]
    assert names == ["unnamed", "backwards"]
    warning = ResidualModel.load(str(model_folder), str(run.model)).sample("The", n=5).warning
    assert "trained against 2 language models (unnamed, backwards)" in warning
    assert config("suffix-train", "prefix-train").run(Job(output=tmp_path / "run")).was_finished


def test_what_is_refused(config, made, corpus_folder, second_corpus, texts_folder, model_folder, tmp_path):
    BuildCorpus(sources=(str(texts_folder),), vocabulary_size=290).run(Job(output=tmp_path / "other"))
    valid = str(made / "suffix-valid")
    cases = [
        (["suffix-train", "suffix-train"], {}, ConfigError, "are the same negatives; name them once"),
        (["suffix-train"], {"validation": [valid, valid]}, ConfigError, "name them once"),
        (["suffix-train", "second-train"], {}, DataError, "give the corpus they were made from"),
        (
            ["suffix-train", "second-train"],
            {"corpus": [str(second_corpus), str(corpus_folder)]},
            DataError,
            "give the corpus they were made from",
        ),
        (
            ["suffix-train", "prefix-train", "longer"],
            {"corpus": [str(corpus_folder), str(second_corpus)]},
            ConfigError,
            "2 corpora came for 3 folders of negatives; give one for all, or one for each",
        ),
        (
            ["suffix-train", "second-train"],
            {"corpus": [str(corpus_folder), str(tmp_path / "other")]},
            VocabularyMismatch,
            f"--tokenizer {corpus_folder / 'tokenizer'}",
        ),
        (["suffix-train", "longer"], {}, ConfigError, "cut the same texts into different windows"),
        (["suffix-train", "overlapping"], {}, ConfigError, "would have been seen; give negatives of another split"),
        (["suffix-train", "prefix-train"], {"negatives_per_context": 3}, ConfigError, "prefix-train holds 2 of each"),
        (
            ["suffix-train", "prefix-train"],
            {"language_model": str(model_folder)},
            DataError,
            "were written by 'backwards'",
        ),
        (["suffix-train"], {"validation": str(made / "prefix-valid")}, DataError, "were written by 'backwards'"),
        (
            ["suffix-train"],
            {"validation": str(made / "second-valid")},
            DataError,
            "give the corpus they were made from",
        ),
        (
            ["prefix-train", "suffix-train"],
            {"validation": [valid, str(made / "suffix-train")]},
            DataError,
            "validate on another split",
        ),
        (["suffix-train"], {"init": "bilstm-tiny", "pooling": "first"}, ConfigError, "LSTM encoder; use 'mean'"),
        (["suffix-train"], {"kind": "bilstm"}, ConfigError, "not 'bilstm'; take one of: bilstm-tiny, bilstm-small"),
        (["suffix-train"], {"init": "linear", "reads": "text"}, ConfigError, "leave --reads out"),
        (["suffix-train"], {"network": {"width": 3}}, ConfigError, "unknown key 'width'"),
    ]
    for names, values, error, said in cases:
        with pytest.raises(error) as raised:
            config(*names, **values).check(Job(output=tmp_path / "run"))
        assert said in str(raised.value) and "\n" not in str(raised.value), str(raised.value)
    assert not (tmp_path / "run").exists()
    # What would be refused without validation texts of their own is fine with them.
    open_data(config("suffix-train", "longer", "overlapping", validation=valid))


def test_corpora_of_one_text_are_not_held_out_of_each_other(
    config, made, corpus_folder, texts_folder, model_folder, tmp_path
):
    """Another corpus of the same files, split otherwise: its windows hold text that the first one holds out."""
    build = BuildCorpus(
        sources=(str(texts_folder),), tokenizer=str(corpus_folder / "tokenizer"), valid_fraction=0.15, split_seed=1
    )
    build.run(Job(output=tmp_path / "again"))
    again = MakeNegatives(
        corpus=str(tmp_path / "again"),
        language_model=str(model_folder),
        k=3,
        length=LENGTH,
        prefix_tokens=(8,),
        contexts=20,
    )
    again.run(Job(output=tmp_path / "n"))
    both = {"negatives": [str(made / "suffix-train"), str(tmp_path / "n")]}
    both["corpus"] = [str(corpus_folder), str(tmp_path / "again")]
    with pytest.raises(ConfigError, match="share a source file"):
        open_data(config(**both))
    open_data(config(**both, validation=str(made / "suffix-valid")))


def test_sources_may_have_unequal_numbers_of_negatives(config, made):
    """3 and 2 negatives, 2 at a time: all of both are used, and no number beyond what a context has."""
    data, task = task_of(config("suffix-train", "prefix-train"), negatives_per_context=2)
    assert (data.train.k, Negatives.open(made / "suffix-train").k) == (2, 3)
    seen = []
    for part in data.train.parts:
        original = part.sequences
        part.sequences = lambda contexts, copies, f=original, k=part.k: (seen.append((k, copies)), f(contexts, copies))[
            1
        ]
    for step in range(1, 20):
        task.batch(step, range(8))
    used = {k: {int(c) for of, copies in seen for c in copies.ravel() if of == k} for k in (3, 2)}
    assert used == {3: {0, 1, 2}, 2: {0, 1}}
