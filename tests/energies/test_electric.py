"""Token energies: padding, the exact conditional by |V| passes, where training starts, and classes of words."""

import math
from itertools import product

import pytest
import torch
from torch.testing import assert_close
from transformers import ElectraModel

from energylm.config.models import TransformerShape
from energylm.energies import electric
from energylm.energies.electric import (
    BEGINS,
    CONTINUES,
    IN_DICTIONARY,
    NO_WORD,
    ONCE,
    STANDS_ALONE,
    UNKNOWN,
    TokenEnergy,
    WordClasses,
    exact_conditionals,
    word_keys,
)
from energylm.models.cloze_presets import electra_config
from energylm.testing import enumerate_sequences, index_of

SHAPE = TransformerShape(layers=2, width=16, heads=2, dropout=0.0)


def build(vocabulary=11, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = ElectraModel(electra_config(SHAPE, vocabulary_size=vocabulary, max_length=8, pad_token_id=None))
    energy = TokenEnergy(encoder, seed=seed).eval()
    with torch.no_grad():
        energy.head.weight.mul_(100)  # so that energies differ
    return energy


def tokens(rows=3, length=8, vocabulary=11):
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_padding_and_the_batch_do_not_matter():
    energy, x, lengths = build(), tokens(), torch.tensor([8, 5, 1])
    together = energy(x, lengths)
    real = torch.arange(8) < lengths[:, None]
    assert torch.equal(energy(torch.where(real, x, (x + 3) % 11), lengths), together)
    for row, length in enumerate(lengths.tolist()):
        assert_close(together[row, :length], energy(x[row : row + 1, :length])[0], atol=1e-5, rtol=0)
        assert not together[row, length:].any()
    assert float((energy(x)[1, :5] - together[1, :5]).abs().max()) > 1e-3  # teeth: padding that is read


@torch.no_grad()
def test_it_is_a_projection_of_the_encoders_own_states():
    energy, x = build(), tokens()
    hidden = energy.encoder(input_ids=x).last_hidden_state
    assert_close(energy(x), hidden @ energy.head.weight[0] + energy.head.bias)


@torch.no_grad()
def test_the_exact_conditional_sums_to_one_and_is_the_definition():
    """|V| passes over a batch with padding, against exp(−E)/Z written out for each row and candidate."""
    energy, x, lengths, t = build(), tokens(), torch.tensor([8, 6, 4]), 2
    log_prob, log_partition = exact_conditionals(energy, x, lengths, position=t, vocabulary_size=11)
    assert_close(log_prob.exp().sum(1), torch.ones(3))
    for row, length in enumerate(lengths.tolist()):
        weights = []
        for v in range(11):
            replaced = x[row, :length].clone()
            replaced[t] = v
            weights.append(math.exp(-float(energy(replaced[None])[0, t])))
        assert_close(log_prob[row].exp(), torch.tensor(weights) / sum(weights), atol=1e-5, rtol=1e-4)
        assert float(log_partition[row]) == pytest.approx(math.log(sum(weights)), abs=1e-4)
    own = log_prob.gather(1, x[:, t : t + 1])[:, 0]
    assert_close(own, -energy(x, lengths)[:, t] - log_partition, atol=1e-5, rtol=0)
    # Teeth: reading the energy at another position is no distribution of this token.
    wrong = torch.stack([-energy(x.index_fill(1, torch.tensor([t]), v), lengths)[:, 0] for v in range(11)], dim=1)
    assert float((wrong.log_softmax(1) - log_prob).abs().max()) > 1e-2


def test_a_table_of_true_conditionals_is_normalised_already():
    """Energies −log P(x_t | x_∖t) of any joint distribution: Z = 1 everywhere."""
    universe = enumerate_sequences(3, 3)
    joint = torch.randn(27, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(0).view(3, 3, 3)

    def energies(x, _lengths):
        p = joint.flatten()[index_of(x, universe)]
        rest = [joint.sum(t)[tuple(x[:, [s for s in range(3) if s != t]].T)] for t in range(3)]
        return torch.stack([marginal.log() - p.log() for marginal in rest], dim=1)

    lengths = torch.full((27,), 3)
    for t in range(3):
        log_prob, log_partition = exact_conditionals(energies, universe, lengths, position=t, vocabulary_size=3)
        assert_close(log_partition, torch.zeros(27, dtype=torch.float64), atol=1e-12, rtol=0)
        conditional = joint.movedim(t, -1)[tuple(universe[:, [s for s in range(3) if s != t]].T)]
        assert_close(log_prob.exp(), conditional / conditional.sum(1, keepdim=True))


def test_it_starts_as_the_uniform_distribution_and_seeds_name_heads():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = ElectraModel(electra_config(SHAPE, vocabulary_size=11, max_length=8, pad_token_id=None))
    first, again, other = (TokenEnergy(encoder, seed=seed) for seed in (0, 0, 1))
    x = tokens()
    with torch.no_grad():
        assert float((first(x) - math.log(11)).abs().max()) < 0.1
    assert torch.equal(first.head.weight, again.head.weight) and not torch.equal(first.head.weight, other.head.weight)


PARTS = torch.tensor([STANDS_ALONE, BEGINS, CONTINUES, BEGINS, CONTINUES, BEGINS, CONTINUES, BEGINS, CONTINUES, 1, 0])


def keys_of(words):
    """One word a row."""
    rows = [torch.tensor([word]) for word in words]
    return torch.stack([word_keys(row, PARTS[row])[0, 0] for row in rows])


def classes_by_loops(tokens, known):
    """Words of one row as tuples, cut by hand; `known` is how often each stands in some text."""
    classes, word, cut = [NO_WORD] * len(tokens), [], []
    for place, token in enumerate(tokens):
        if PARTS[token] != CONTINUES or not word:
            cut.append(word)
            word = []
        if PARTS[token] != STANDS_ALONE:
            word.append(place)
    for places in [*cut, word]:
        count = known.get(tuple(tokens[place] for place in places))
        for place in places:
            common = IN_DICTIONARY if count == 0 else ONCE + int(math.log2(count or 1))
            classes[place] = UNKNOWN if count is None else common
    return classes


KNOWN = {(1,): 5, (1, 2): 0, (1, 4): 1, (3, 2): 2, (3, 2, 4): 9, (5,): 1000, (2,): 3}


def word_classes(width=16):
    counts = torch.tensor([*KNOWN.values()])
    return WordClasses.of_counts(width, part_V=PARTS, key_W=keys_of(KNOWN), count_W=counts)


def test_every_word_has_a_number_of_its_own():
    """All words of up to three tokens; teeth: with base 1 those of the same tokens in another order are one."""
    words = [word for length in (1, 2, 3) for word in product(range(1, 11), repeat=length)]
    words = [word for word in words if not any(PARTS[token] == BEGINS for token in word[1:])]
    assert len(set(keys_of(words).tolist())) == len(words) > 200
    assert int(keys_of([(1, 2, 4)])) != int(keys_of([(1, 4, 2)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(electric, "BASE", 1)
        assert int(keys_of([(1, 2, 4)])) == int(keys_of([(1, 4, 2)]))


def test_classes_are_those_of_words_cut_by_hand():
    """Texts of all kinds, the last tokens of some left out as padding; teeth: words that do not end with their text."""
    x, lengths = tokens(rows=400), torch.arange(400) % 8 + 1
    real = torch.arange(8) < lengths[:, None]
    words, expected = word_classes(), []
    for row, length in zip(x.tolist(), lengths.tolist(), strict=True):
        expected.append(classes_by_loops(row[:length], KNOWN) + [NO_WORD] * (8 - length))
    expected = torch.tensor(expected)
    assert torch.equal(words.classes(x, real), expected)
    assert set(expected.unique().tolist()) > {NO_WORD, UNKNOWN, IN_DICTIONARY, ONCE, ONCE + 9}
    assert not torch.equal(words.classes(x).where(real, NO_WORD), expected)  # padding that continues the last word


@torch.no_grad()
def test_classes_are_read_beside_tokens():
    """At first they say nothing; then they do, of a word by all of its tokens, and padding does not matter."""
    energy, x, lengths = build(), tokens(rows=40), torch.arange(40) % 8 + 1
    plain, real = energy(x, lengths), torch.arange(8) < lengths[:, None]
    energy.words = word_classes()
    assert_close(energy(x, lengths), plain)
    energy.words.embedding.weight.normal_(generator=torch.Generator().manual_seed(1))
    read = energy(x, lengths)
    assert float((read - plain)[real].abs().min()) > 1e-5
    assert torch.equal(energy(torch.where(real, x, (x + 3) % 11), lengths), read)
    for row, length in enumerate(lengths.tolist()):
        assert_close(read[row, :length], energy(x[row : row + 1, :length])[0], atol=1e-5, rtol=0)
    again = WordClasses.of_state(energy.words.state_dict())
    assert torch.equal(again(x, real), energy.words(x, real))


@torch.no_grad()
def test_the_exact_conditional_asks_for_words_anew():
    """A replaced token makes another word, whose class is another."""
    energy, x, lengths = build(), torch.tensor([[0, 1, 2, 3, 0]]), torch.tensor([5])
    energy.words = word_classes()
    energy.words.embedding.weight.normal_(generator=torch.Generator().manual_seed(1))
    log_prob, _ = exact_conditionals(energy, x, lengths, position=2, vocabulary_size=11)
    by_hand = torch.stack([-energy(torch.tensor([[0, 1, token, 3, 0]]))[0, 2] for token in range(11)])
    assert_close(log_prob[0], by_hand.log_softmax(0))
