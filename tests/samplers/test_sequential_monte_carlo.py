"""Sequential Monte Carlo on enumerable languages: every path of two particles, tokens and resamplings included.

    E[Ẑ] = Z                                          whatever the values on the way and the threshold, to 1e-10
    q_SMC(x) = E_conditional[γ(x) / Ẑ]                for every text x: the certificate's identity, to 1e-10
    E[log Ẑ] ≤ log Z ≤ E_{x ~ target, conditional}[log Ẑ]

and, for more particles, Ẑ by a t-test and the law of what is kept by chi-square.
"""

import math
from dataclasses import replace

import pytest
import torch

from energylm.randomness import row_keys
from energylm.samplers import sequential_monte_carlo as smc
from energylm.samplers.choices import RowChoices
from energylm.samplers.sequential_monte_carlo import (
    Retained,
    SystematicPieces,
    family_sample_size,
    keep_rows,
    sequential_monte_carlo,
)
from energylm.samplers.written_rows import ReadContexts
from energylm.testing import (
    TabularEnergy,
    TabularLanguageModel,
    assert_mean,
    assert_same_distribution,
    enumerate_paths,
    exact_joint,
    exact_language_model,
)

CONTEXT, NEW = [1], 3
ENERGY = TabularEnergy.random(2, len(CONTEXT) + NEW, seed=5, scale=1.0)
VALUE = TabularEnergy.random(2, len(CONTEXT) + NEW, seed=6, scale=1.0)
LMS = {  # with the end token far fewer paths
    "fixed length": TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3),
    "end token": TabularLanguageModel.random(2, len(CONTEXT) + NEW, seed=3, eos_token_id=0),
}


def read_off(table, written):
    """(B, N) −table at what each particle has written."""
    count, n, width = written.tokens_BNT.shape
    context = torch.tensor(CONTEXT).expand(count * n, -1)
    tokens = torch.cat([context, written.tokens_BNT.reshape(count * n, width)], 1)
    return -table.energies(tokens, len(CONTEXT) + written.lengths_BN.flatten()).view(count, n)


def on_the_way(written):
    """An arbitrary value of what is written; of ended texts too."""
    return read_off(VALUE, written)


def at_the_end(written):
    return read_off(ENERGY, written)


def nothing(written):
    return torch.zeros_like(written.log_prob_BN)


def particles(
    lm, choices, resampling=None, *, n=2, new=NEW, contexts=1, value=on_the_way, threshold=2.0, block=1, text=None
):
    read = ReadContexts(lm.decoder(), [CONTEXT] * contexts, n=n, eos_token_id=lm.eos_token_id)
    retained = None if text is None else Retained(text[0][None], text[1][None])
    return sequential_monte_carlo(
        read,
        choices,
        resampling or choices,
        new_tokens=new,
        block_tokens=block,
        on_the_way=value,
        at_the_end=at_the_end,
        threshold=threshold,
        retained=retained,
    )


def expected(lm, of=lambda result: result.log_partition_B[0].exp(), **options):
    paths = enumerate_paths(lambda choices: float(of(particles(lm, choices, **options))))
    return math.fsum(probability * value for probability, value in paths)


def inverse(result):
    return (-result.log_partition_B[0]).exp()


CASES = {
    "always resampled": {},
    "at a threshold": {"threshold": 0.8},
    "never": {"threshold": 0.0},
    "blocks of two": {"block": 2},
    "no value": {"value": nothing},
    "exact energies of prefixes": {"value": at_the_end},
}


@pytest.mark.parametrize(
    ("kind", "case"), [("fixed length", "always resampled"), *(("end token", case) for case in CASES)]
)
def test_the_estimate_of_z_is_unbiased_and_its_logarithm_below(kind, case):
    lm = LMS[kind]
    log_z = exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=NEW).log_partition
    paths = enumerate_paths(lambda choices: float(particles(lm, choices, **CASES[case]).log_partition_B[0]))
    assert math.fsum(share * math.exp(value) for share, value in paths) == pytest.approx(math.exp(log_z), abs=1e-10)
    assert math.fsum(share * value for share, value in paths) < log_z


@pytest.mark.parametrize("mistake", ["value", "mean", "pieces"])
def test_mistakes_of_the_sampler_are_caught(monkeypatch, mistake):
    """Values that are not carried to the children, a sum for a mean, and pieces of u of equal length."""
    lm = LMS["end token"]
    if mistake == "value":
        monkeypatch.setattr(smc, "_increase", lambda new, old: new)
    elif mistake == "mean":
        monkeypatch.setattr(smc, "log_mean_exp", lambda weights: weights.logsumexp(-1))
    else:
        right = SystematicPieces.of
        monkeypatch.setattr(
            SystematicPieces, "of", lambda weights: replace(right(weights), log_length_BM=torch.zeros(1, 3))
        )
    log_z = exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=NEW).log_partition
    assert abs(expected(lm) - math.exp(log_z)) > 1e-3


def kept_law(lm, *, new=NEW, **options):
    """Of the text that is kept of two particles by its weight."""
    base = exact_language_model(lm, CONTEXT, max_new_tokens=new)

    def run(choices):
        result = particles(lm, choices, new=new, **options)
        index = choices.categorical(result.log_weight_BN)[0]
        return int(base.index(result.written.tokens_BNT[0, index][None], result.written.lengths_BN[0, index][None]))

    law = torch.zeros(len(base.tokens), dtype=torch.float64)
    for probability, text in enumerate_paths(run):
        law[text] += probability
    return law


def certified_law(lm, *, new=NEW, **options):
    """E[γ(x) / Ẑ] over runs that retain x, for every x."""
    joint = exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=new)
    return torch.tensor(
        [
            float((log_prob + joint.log_partition).exp())
            * expected(lm, of=inverse, text=(tokens, length), new=new, **options)
            for tokens, length, log_prob in zip(joint.tokens, joint.lengths, joint.log_prob, strict=True)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [("fixed length", {"new": 2}), ("end token", {"threshold": 0.8}), ("end token", {})],
    ids=["two tokens", "at a threshold", "always resampled"],
)
def test_runs_that_retain_a_text_certify_its_density(kind, options):
    lm = LMS[kind]
    law = kept_law(lm, **options)
    assert law.sum() == pytest.approx(1.0)
    torch.testing.assert_close(certified_law(lm, **options), law, atol=1e-10, rtol=0)


def test_retained_by_plain_resampling_is_caught(monkeypatch):
    """Deliberate mistake: u is drawn as if no text were retained; the text, which may then have no child, keeps its
    row."""
    lm, right = LMS["end token"], smc._Given.resample

    def resample(self, log_weight_BN, is_poor_B, choices):
        retained, self._retained = self._retained, None
        parents = right(self, log_weight_BN, is_poor_B, choices)
        self._retained = retained
        parents[0, self._row_B] = self._row_B
        return parents

    law = kept_law(lm)
    monkeypatch.setattr(smc._Given, "resample", resample)
    assert (certified_law(lm) - law).abs().max() > 1e-3


def test_from_exact_draws_the_retaining_runs_lie_above():
    """E[1/Ẑ] = 1/Z and E[log Ẑ] ≥ log Z, where x is drawn from the target."""
    lm = LMS["end token"]
    joint = exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=NEW)
    log_estimates = [
        (probability * share, value)
        for probability, tokens, length in zip(joint.probabilities.tolist(), joint.tokens, joint.lengths, strict=True)
        for share, value in enumerate_paths(
            lambda choices, text=(tokens, length): float(particles(lm, choices, text=text).log_partition_B[0])
        )
    ]
    mean_inverse = math.fsum(share * math.exp(-value) for share, value in log_estimates)
    assert mean_inverse == pytest.approx(math.exp(-joint.log_partition), abs=1e-10)
    above = math.fsum(share * value for share, value in log_estimates)
    assert above > joint.log_partition > expected(lm, of=lambda result: result.log_partition_B[0])


def drawn(lm, *, contexts, n, **options):
    index = torch.arange(contexts)
    choices = RowChoices(row_keys(1, index.repeat_interleave(n), torch.arange(n).repeat(contexts)))
    resampling = RowChoices(row_keys(2, index, torch.zeros_like(index)))
    return particles(lm, choices, resampling, n=n, contexts=contexts, **options), resampling


@pytest.mark.parametrize("kind", LMS)
def test_many_particles_estimate_z_and_keep_the_target(kind):
    """1,000 runs of 12 particles: the mean of Ẑ. 400 runs of 60: what they keep has the target's law, up to a bias of
    the order 1/60 that so few runs do not show."""
    lm = LMS[kind]
    joint = exact_joint(lm, ENERGY, CONTEXT, max_new_tokens=NEW)
    result, _ = drawn(lm, contexts=1000, n=12, threshold=0.7)
    assert_mean(result.log_partition_B.exp(), math.exp(joint.log_partition), false_alarm=1e-4)
    with pytest.raises(AssertionError):  # teeth
        assert_mean(result.log_partition_B.exp(), 1.25 * math.exp(joint.log_partition), false_alarm=1e-4)
    result, resampling = drawn(lm, contexts=400, n=60, threshold=0.7)
    kept = resampling.categorical(result.log_weight_BN)
    rows = torch.arange(400)
    counts = joint.counts(result.written.tokens_BNT[rows, kept], result.written.lengths_BN[rows, kept])
    assert_same_distribution(counts, joint.probabilities, false_alarm=1e-4)
    assert 0 < int(result.resamplings_B.sum()) < 400 * NEW


def test_children_are_as_many_as_the_shares_say():
    """E[children of i] = n · share exactly, and no child of what has no weight."""
    weights = torch.tensor([[0.3, -1.2, float("-inf"), 2.0, 0.1], [0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    pieces = SystematicPieces.of(weights)
    log_piece = pieces.log_length_BM
    parents = torch.stack([pieces.parents(torch.tensor([piece, piece])) for piece in range(6)], dim=1)
    children = torch.nn.functional.one_hot(parents, 5).sum(2).double()
    possible = log_piece > -20
    for particle in range(5):
        told = pieces.children(torch.tensor([particle, particle]))
        assert told[possible].equal(children[..., particle][possible])
    mean = (log_piece.exp()[..., None] * children).sum(1)
    torch.testing.assert_close(mean, 5 * weights.softmax(-1), atol=1e-12, rtol=0)
    share = 5 * weights.softmax(-1)[:, None]
    assert ((children - share).abs() < 1)[possible].all()  # systematic: never more than one off
    assert children[0, :, 2].max() == 0


def test_parents_with_children_keep_their_rows():
    parents = torch.tensor([[1, 1, 1, 3, 3], [0, 0, 2, 2, 4], [0, 4, 4, 4, 4], [2, 2, 2, 2, 2], [0, 1, 2, 3, 3]])
    kept = keep_rows(parents)
    assert kept.tolist() == [[1, 1, 1, 3, 3], [0, 0, 2, 2, 4], [0, 4, 4, 4, 4], [2, 2, 2, 2, 2], [0, 1, 2, 3, 3]]
    assert keep_rows(torch.tensor([[2, 3, 3, 3]])).tolist() == [[3, 3, 2, 3]]
    assert kept.sort(1).values.equal(parents)


def test_particles_of_one_family_count_once():
    result, _ = drawn(LMS["fixed length"], contexts=3, n=8)
    alone, _ = drawn(LMS["fixed length"], contexts=3, n=8, threshold=0.0)
    ess = smc.effective_sample_size
    torch.testing.assert_close(family_sample_size(alone), ess(alone.log_weight_BN))
    assert (family_sample_size(result) <= ess(result.log_weight_BN) + 1e-9).all()
    assert (family_sample_size(result) < ess(result.log_weight_BN) - 0.1).any()
