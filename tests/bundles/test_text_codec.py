"""What is taken for texts: everything that holds strings or ids in an order, and nothing that only looks like it."""

import numpy as np
import pandas as pd
import pytest
import torch

from energylm import EnergyModel, LanguageModel, Scorer
from energylm.bundles.text_codec import as_list, text_list
from energylm.bundles.zero_shot_energy import ZeroShotEnergy
from energylm.errors import DataError

TEXTS = ["The clerk counts the boats.", "A sailor mends a letter."]
HOLDERS = {
    "list": list,
    "tuple": tuple,
    "series": lambda texts: pd.Series(texts, index=[7, 3]),
    "array": np.array,
    "generator": iter,
    "column": lambda texts: pd.DataFrame({"text": texts})["text"],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_holds_strings_in_order_is_a_list_of_texts(holder):
    assert text_list(HOLDERS[holder](TEXTS)) == TEXTS == as_list(HOLDERS[holder](TEXTS))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5, 6], [[5, 6]]),
        ((5, 6), [[5, 6]]),
        (np.array([5, 6]), [[5, 6]]),
        (pd.Series([5, 6]), [[5, 6]]),
        (torch.tensor([[5, 6], [7, 8]]), [[5, 6], [7, 8]]),
        ([np.array([5, 6]), [7]], [[5, 6], [7]]),
        ([torch.tensor([5]), (np.int64(6),)], [[5], [6]]),
        ([[]], [[]]),
        ([], []),
        ("abc", ["abc"]),
    ],
)
def test_ids_in_any_form_are_lists_of_plain_numbers(ids, expected):
    found = as_list(ids)
    assert found == expected
    assert {type(token) for text in found for token in text} <= {int, str}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (b"text", r"texts: b'text' \(bytes\) came, expected .*; decode it first"),
        (bytearray(b"text"), "decode it first"),
        (["a", b"text"], r"text 2: b'text' \(bytes\) came, expected a string.*; decode it first"),
        ([b"text"], r"text 1: b'text' \(bytes\)"),
        (["a", None], r"text 2: None \(NoneType\) came, expected a string.*; mend it, or leave it out"),
        (pd.Series(["a", float("nan")], dtype=object), r"text 2: nan \(float\) came"),
        ({"text": "a"}, r"texts: {'text': 'a'} \(dict\) came"),
        ({"a", "b"}, r"\(set\) came"),
        (7, r"texts: 7 \(int\) came"),
        (None, r"texts: None \(NoneType\) came"),
        (pd.DataFrame({"text": TEXTS}), r"\(DataFrame\) came"),
        (["a", ["b"]], "text 2: "),
        ([[1.5, 2.0]], r"text 1: \[1\.5, 2\.0\] \(list\) came"),
        (torch.tensor(7), r"\(Tensor\) came"),
    ],
)
def test_what_is_no_text_is_named(texts, said):
    for read in (as_list, text_list):
        with pytest.raises(DataError, match=said if read is as_list else "came, expected") as caught:
            read(texts)
        assert "\n" not in str(caught.value)


def test_one_string_is_no_list_of_texts():
    """A language model continues and scores one string; where only lists make sense it would be read by characters."""
    assert as_list("abc") == ["abc"]
    with pytest.raises(DataError, match=r"one string came where several texts are read; give a list: \[text\]"):
        text_list("abc")


def test_strings_and_ids_do_not_mix():
    with pytest.raises(DataError, match="strings and lists of token ids came together"):
        as_list(["a", [5, 6]])


def test_every_front_door_takes_a_series_and_refuses_a_string_bytes_and_gaps(model_folder, energy_folder):
    """Two routes: a pandas Series gives the very numbers of the list. Before, "ab" gave the energies of "a" and "b"."""
    lm, scorer = LanguageModel.from_pretrained(model_folder), Scorer.from_pretrained(model_folder)
    energy, likelihood = EnergyModel.from_pretrained(energy_folder), ZeroShotEnergy(lm)
    doors = {
        "text_energies": energy.text_energies,
        "likelihood": likelihood.text_energies,
        "score": lambda texts: torch.tensor(scorer.score(texts)),
        "list_scores": lambda texts: torch.tensor([[one.score for one in row] for row in scorer.list_scores([texts])]),
        "lm.score": lambda texts: torch.tensor([score.log_prob for score in lm.score(texts)]),
        "perplexity": lambda texts: torch.tensor(lm.perplexity(texts).value),
        "sample": lambda texts: lm.sample(texts, n=2, max_new_tokens=3).continuations.log_prob,
    }
    for name, door in doors.items():
        torch.testing.assert_close(door(pd.Series(TEXTS)), door(TEXTS), atol=0, rtol=0)
        for wrong in (b"text", [TEXTS[0], None], {"text": 1}):
            with pytest.raises(DataError, match="came, expected"):
                door(wrong)
        if not name.startswith(("lm.", "perplexity", "sample")):
            with pytest.raises(DataError, match="one string came"):
                door("ab")
    with pytest.raises(DataError, match="one string came"):
        scorer.list_scores(["ab", "cd"])
