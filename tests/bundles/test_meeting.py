"""What is known against an energy and a language model before anything is measured, told by the joint model itself."""

import pytest
import torch

from energylm import EnergyModel, LanguageModel, ResidualModel
from energylm.bundles.compatibility import calibration_caution, end_caution, length_caution
from energylm.bundles.joint_samplers import PoolRequest
from energylm.bundles.model_folder import weights_sha256
from energylm.bundles.weighted_draws import ended_texts
from energylm.config.sampling import JointSampling
from energylm.models.causal import CausalLanguageModel

TEXTS = ["The clerk counts the boats. A sailor mends a bridge.", "Our neighbour paints an old map. Her sister sells."]
OTHER = "was trained against the writer (weights {}) and not against the weights of this language model"
UNKNOWN = "whether these are the weights of this language model is not known"


@pytest.fixture
def lm(model_folder):
    return LanguageModel.from_pretrained(model_folder)


@pytest.fixture
def trained(energy_folder):
    """An energy with a story of its own."""

    def make(*, sha256="0" * 64, length=32, documents="within", **record):
        energy = EnergyModel.from_pretrained(energy_folder)
        source = {"generator": {"name": "the writer", "sha256": sha256}, "negatives": {"truncation": {}}}
        source["negatives"] |= {"length": length, "documents": documents}
        energy.provenance |= {"sources": [source], **record}
        return energy

    return make


def test_every_result_tells_of_other_weights(lm, trained, capsys):
    """`ResidualModel(lm, energy)` itself, whatever is asked of it, and once aloud."""
    joint, doubt = ResidualModel(lm, trained(length=400)), OTHER.format("0" * 12)
    results = [
        joint.perplexity(TEXTS, prefix_tokens=5, n=60),
        joint.stepwise([lm.encode(text)[:7] for text in TEXTS], prefix_tokens=5, n=60),
        joint.log_partition(["The clerk"], n=60, max_new_tokens=3),
        joint.sample("The clerk", n=60, max_new_tokens=3),
        joint.next_token_table("The clerk", candidates=3, n=60, max_new_tokens=3),
        joint.sample_autoregressive("The clerk", candidates=3, n=60, max_new_tokens=2),
    ]
    assert all(doubt in result.warning and "windows of" not in result.warning for result in results)
    assert capsys.readouterr().err.count(doubt) == 1
    ResidualModel(lm, trained()).log_weights(TEXTS, prefix_tokens=5)
    assert doubt in capsys.readouterr().err


def test_the_writers_own_weights_are_known_wherever_they_went(lm, model_folder, trained, tmp_path):
    """The folder, a view of it, a joint model's copy, even in another precision; teeth: one weight moved is another
    model, and a live network is nobody's."""
    energy = trained(sha256=weights_sha256(model_folder), length=400)
    assert ResidualModel(lm, energy).caution(10) is None
    assert ResidualModel(lm.without_special_tokens(), energy).caution(10) is None
    lm.model.network.to(torch.float64)
    ResidualModel(lm, energy).save_pretrained(tmp_path / "joint")
    copy = ResidualModel.from_pretrained(tmp_path / "joint")
    assert weights_sha256(tmp_path / "joint" / "language_model") != weights_sha256(model_folder)
    assert copy.caution(10) is None and copy.energy.provenance == energy.provenance
    lm.model.network.get_input_embeddings().weight.data[5] += 1
    moved = LanguageModel(lm.model, lm.tokenizer)
    moved.save_pretrained(tmp_path / "moved")
    other = LanguageModel.from_pretrained(tmp_path / "moved")
    assert OTHER.format(weights_sha256(model_folder)[:12]) in ResidualModel(other, energy).caution(10)
    for live in (moved, CausalLanguageModel(lm.model.network, start_token_id=0, eos_token_id=0)):
        assert not getattr(live, "weights_hashes", None)
    assert UNKNOWN in ResidualModel(moved, energy).caution(10)


def test_a_converted_file_is_known_by_its_own_hash(lm, trained):
    """Negatives that a GGUF file wrote name the file, while its converted folder has another hash."""
    lm.provenance["sha256"] = "1" * 64
    assert ResidualModel(lm, trained(sha256="1" * 64, length=400)).caution(10) is None
    assert OTHER.format("2" * 12) in ResidualModel(lm, trained(sha256="2" * 64)).caution(10)


def test_an_energy_that_reads_longer_texts_than_it_was_trained_on_is_doubted(lm, model_folder, trained):
    """Windows of 32 tokens, measured on 40. Teeth: 32 of them are no ground for doubt."""
    joint = ResidualModel(lm, trained(sha256=weights_sha256(model_folder)))
    ids = [lm.encode(" ".join(TEXTS * 2))[:40]]
    doubt = "was trained on windows of 32 tokens and reads up to 40 here"
    assert doubt in joint.perplexity(ids, prefix_tokens=36, n=60).warning
    assert doubt in joint.stepwise(ids, prefix_tokens=38, n=60).warning
    assert doubt in joint.log_partition([ids[0][:36]], n=60, max_new_tokens=4).warning
    assert doubt in joint.sample(ids[0][:36], n=60, max_new_tokens=4, stop_at_eos=False).warning
    assert doubt in joint.next_token_table(ids[0][:36], n=60, candidates=2, max_new_tokens=4).warning
    within = [ids[0][:32]]
    assert "windows of" not in (joint.perplexity(within, prefix_tokens=28, n=60).warning or "")
    assert "windows of" not in (joint.sample(ids[0][:28], n=60, max_new_tokens=4).warning or "")
    assert "reads up to 33 here" in joint.perplexity(within, prefix_tokens=28, n=60, max_new_tokens=5).warning
    # Chunks of a long text are read with the latest tokens only.
    chunks = {"n": 60, "max_new_tokens": 4, "chunks": 2, "stop_at_eos": False}
    assert "windows of" not in (joint.sample(ids[0], context_tokens=28, **chunks).warning or "")
    assert "reads up to 36 here" in joint.sample(ids[0][:28], **chunks).warning
    assert length_caution(EnergyModel.from_encoder(model_folder), 10_000) is None  # untrained: nothing is known


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"contexts": 1, "scale": 50.0}, "the energy's scale 50 was fitted on 1 context, too few"),
        ({"contexts": 29, "scale": 50.0, "scale_standard_error": 7.0}, "scale 50 ± 7 was fitted on 29 contexts, too"),
        ({"contexts": 500, "scale": 50.0, "scale_standard_error": 26.0}, "scale 50 ± 26 was fitted on 500 contexts"),
        ({"contexts": 30, "scale": 50.0, "scale_standard_error": 7.0}, None),
        ({"contexts": 30, "scale": 50.0}, None),
        ({"contexts": 1, "scale": 3.0}, None),  # the energy was read without this calibration
        ({"contexts": 0, "scale": 50.0}, None),  # there was none
    ],
)
def test_a_calibration_on_few_contexts_is_told(lm, model_folder, trained, record, said):
    energy = trained(sha256=weights_sha256(model_folder), length=400, calibration=record)
    warning = ResidualModel(lm, energy).perplexity(TEXTS, prefix_tokens=5, n=60).warning or ""
    assert (said in warning) if said else ("scale" not in warning)
    assert (calibration_caution(energy) is None) == (said is None)


def test_a_detector_in_the_place_of_an_energy_is_doubted_not_stumbled_over(lm, energy_folder):
    """Its sources are names of texts."""
    energy = EnergyModel.from_pretrained(energy_folder)
    energy.provenance |= {"loss": "binary cross-entropy of blocks", "sources": ["news", "books"]}
    assert "trained with the binary cross-entropy of blocks loss" in ResidualModel(lm, energy).caution(10)


def test_an_energy_that_has_seen_no_end_is_doubted_where_texts_end(lm, model_folder, trained):
    """Counted by the other route: candidates of the same random numbers that hold end-of-text, drawn by the language
    model alone. Teeth: an energy of packed documents, a model that writes no special token and candidates that do not
    end are not doubted, though the model could have ended them."""
    of_packed, energy = (trained(sha256=weights_sha256(model_folder), documents=d) for d in ("packed", "within"))
    joint, sizes = ResidualModel(lm, energy), {"n": 400, "max_new_tokens": 6, "seed": 3}
    drawn = lm.sample(["The clerk"], **sizes).continuations
    ended = [lm.eos_token_id in row[:length] for row, length in zip(drawn.tokens[0], drawn.lengths[0], strict=True)]
    assert 0 < sum(ended) < 40  # of a random model, about one token in 300
    doubt = f"windows within documents, where no text ends, and reads {sum(ended)} here that hold the end-of-text token"
    assert doubt in joint.sample("The clerk", **sizes).warning
    assert doubt in joint.log_partition(["The clerk"], stop_at_eos=True, **sizes).warning
    assert doubt in joint.sample_requests([request_of(joint, "The clerk", **sizes)])[0].warning

    assert "no text ends" not in (ResidualModel(lm, of_packed).sample("The clerk", **sizes).warning or "")
    plain = ResidualModel(lm.without_special_tokens(), energy)
    assert "no text ends" not in (plain.sample("The clerk", **sizes).warning or "")
    assert "no text ends" not in (plain.log_partition(["The clerk"], **sizes).warning or "")
    going_on = {"n": 400, "max_new_tokens": 1, "top_k": 1}  # the likeliest first token, 400 times
    sample = joint.sample("The clerk", **going_on)
    assert lm.eos_token_id not in sample.pools[0].tokens and "no text ends" not in (sample.warning or "")
    assert (
        end_caution(energy, 0) is None
        and end_caution(of_packed, 5) is None
        and "reads 5 here" in end_caution(energy, 5)
    )


def test_real_texts_that_end_are_counted_and_later_results_are_their_own(lm, model_folder, trained, capsys):
    """Two of three texts end with EOS; a result that ends nowhere, asked for afterwards, is not blamed for them."""
    joint = ResidualModel(lm, trained(sha256=weights_sha256(model_folder)))
    ids = [lm.encode(text)[:8] for text in TEXTS]
    texts = [[*ids[0], lm.eos_token_id], [*ids[1], lm.eos_token_id], [*ids[1], ids[1][0]]]
    joint.log_weights(texts, prefix_tokens=5, max_new_tokens=4)
    assert "reads 2 here that hold the end-of-text token" in capsys.readouterr().err
    later = joint.next_token_table("The clerk", candidates=1, n=20, max_new_tokens=1)
    assert later.base[0].token != lm.eos_token_id and "no text ends" not in (later.warning or "")


def test_padding_is_no_end():
    """Token 0 is padding past a text's end and end-of-text within it: rows 0 and 2 end, row 1 was cut before it."""
    tokens_NT, lengths_N = torch.tensor([[3, 0, 0], [3, 4, 0], [0, 5, 6]]), torch.tensor([2, 2, 3])
    assert ended_texts(tokens_NT, lengths_N, 0) == 2 and ended_texts(tokens_NT, lengths_N, None) == 0
    assert ended_texts(tokens_NT[None], lengths_N[None], 0) == 2  # with a dimension of contexts before


def request_of(joint, prompt, *, seed, **sizes):
    (context,) = joint._texts.contexts([prompt])
    return PoolRequest(context, JointSampling(**sizes), seed)
