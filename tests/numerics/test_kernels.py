"""The compiled kernels and torch's way against their definitions in float64, mistakes noticed; no compiler, no harm."""

import shutil
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources

import pytest
import torch

from energylm.errors import DiskFull
from energylm.numerics import kernels
from energylm.numerics.kernels import (
    SOURCE,
    LayerCache,
    PackedLinear,
    attend,
    attend_by_torch,
    compiled,
    compiled_kernels,
    in_panels,
    side_by_side,
)

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
SHAPES = [  # contexts, heads of keys, queries to each, copies, numbers a head, tokens of the longest context
    (1, 3, 3, 32, 64, 127),  # SmolLM2's
    (2, 2, 1, 5, 32, 33),
    (3, 1, 4, 1, 40, 9),  # columns that fill no vector
    (2, 2, 2, 3, 6, 70),
]
ROOM, FILLED = 5, 3
MISTAKES = {
    "turned the wrong way": ("x[d + 1] * rotation[d + 1];", "-x[d + 1] * rotation[d + 1];"),
    "the newest token is not read": ("exponentials(prefix + filled,", "exponentials(prefix + filled - 1,"),
    "padding is read": ("int prefix = (int)prefix_lengths[b];", "int prefix = prefix_room;"),
    "one copy's tokens for all": ("(long)((start + r) / group) * room * width;", "0;"),
    "weights are not shared out": ("/ total[r];", ";"),
    "own values replace the context's": ("sum + r * (long)width, width, 1);", "sum + r * (long)width, width, 0);"),
}


def inputs(contexts, kv_heads, group, copies, width, prefix, *, rotates=True):
    made = torch.Generator().manual_seed(contexts * width + copies)

    def normal(*shape):
        return torch.randn(*shape, generator=made)

    angle = normal(contexts, width // 2)
    cache = LayerCache(
        prefix_keys=normal(contexts * kv_heads, width, prefix),
        prefix_values=normal(contexts * kv_heads, prefix, width),
        prefix_lengths_B=torch.arange(prefix, prefix - contexts, -1),
        keys=normal(contexts, kv_heads, copies, ROOM, width),
        values=normal(contexts, kv_heads, copies, ROOM, width),
        filled=FILLED,
    )
    projected_RE = normal(contexts * copies, (kv_heads * group + 2 * kv_heads) * width)
    return projected_RE, torch.polar(torch.ones_like(angle), angle) if rotates else None, cache


def copied(cache):
    return replace(cache, keys=cache.keys.clone(), values=cache.values.clone())


def by_definition(projected_RE, rotation_BD, cache):
    """Row by row and head by head."""
    contexts, kv_heads, copies, _, width = cache.keys.shape
    heads = projected_RE.shape[-1] // width - 2 * kv_heads
    result = torch.empty(contexts, copies, heads, width, dtype=torch.float64)
    for context, length in enumerate(cache.prefix_lengths_B.tolist()):
        rotation_D = None if rotation_BD is None else rotation_BD[context]
        for copy, row in enumerate(projected_RE.view(contexts, copies, -1, width)[context].double()):
            for head in range(heads):
                of_keys = head * kv_heads // heads
                shared = context * kv_heads + of_keys
                own = (context, of_keys, copy, slice(FILLED - 1))
                new_key, new_value = turned(row[heads + of_keys], rotation_D), row[heads + kv_heads + of_keys]
                keys = torch.cat([cache.prefix_keys[shared, :, :length].T, cache.keys[own], new_key[None]])
                values = torch.cat([cache.prefix_values[shared, :length], cache.values[own], new_value[None]])
                result[context, copy, head] = (keys @ turned(row[head], rotation_D)).softmax(0) @ values
    return result.view(contexts * copies, -1)


def turned(x_D, rotation_D):
    return (
        x_D if rotation_D is None else torch.view_as_real(torch.view_as_complex(x_D.view(-1, 2)) * rotation_D).flatten()
    )


def gap(way, projected_RE, rotation_BD, cache):
    expected = by_definition(projected_RE, rotation_BD, cache)
    return float((way(projected_RE, rotation_BD, copied(cache)) - expected).abs().max())


@pytest.mark.parametrize("way", [attend_by_torch, pytest.param(attend, marks=needs_compiler)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rotates", [True, False])
def test_attention_is_its_definition(way, shape, rotates):
    assert gap(way, *inputs(*shape, rotates=rotates)) < 2e-5


@needs_compiler
def test_the_cache_has_the_newest_token_afterwards():
    projected_RE, rotation_BD, cache = inputs(2, 2, 2, 3, 6, 9)
    again = copied(cache)
    attend(projected_RE, rotation_BD, cache)
    attend_by_torch(projected_RE, rotation_BD, again)
    torch.testing.assert_close((cache.keys, cache.values), (again.keys, again.values))


@needs_compiler
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(mistake, tmp_path, monkeypatch):
    right, wrong = MISTAKES[mistake]
    source = (resources.files("energylm.numerics") / SOURCE).read_text()
    assert right in source
    library = compiled(source.replace(right, wrong), tmp_path)
    monkeypatch.setattr(kernels, "compiled_kernels", lambda: library)
    assert gap(attend, *inputs(*SHAPES[1])) > 0.01


@dataclass(frozen=True)
class Products:
    first: PackedLinear
    second: PackedLinear


ENDS = {
    "none": lambda made, other: made,
    "swish": lambda made, other: made * made.sigmoid(),
    "gelu tanh": lambda made, other: torch.nn.functional.gelu(made, approximate="tanh"),
    "gelu none": lambda made, other: torch.nn.functional.gelu(made),
    "add": lambda made, other: made + other,
    "mul": lambda made, other: made * other,
}
LINEAR_MISTAKES = {
    "the tail of the last panel": ("? columns - start : COLUMNS;", "? columns - start - 1 : COLUMNS;"),
    "rows of another tile": ("x + first * inner, panel", "x, panel"),
    "half of a panel twice": ("COLUMNS))[1];", "COLUMNS))[0];"),
    "the bias of another panel": ("bias ? bias + start : 0", "bias"),
    "the other's first row for all": ("other + r * columns + start", "other + start"),
    "a denominator of infinity": ("u < -80 ? 80 : -u", "-u"),
    "another denominator": ("return x / (1 + expf(", "return x / (2 + expf("),
}


def products(columns=77, inner=40):
    """Two products of one piece of memory, and what they were made of."""
    made = torch.Generator().manual_seed(columns)
    weights = [torch.randn(columns, inner, generator=made) for _ in range(2)]
    biases = [None, torch.randn(columns, generator=made)]
    packed = Products(*(PackedLinear.of(weight, bias) for weight, bias in zip(weights, biases, strict=True)))
    return in_panels([packed])[0], weights, biases


def linear_gap(rows):
    """Between panels and float64, over all that a product may end with."""
    packed, weights, biases = products()
    made = torch.Generator().manual_seed(rows)
    x, other = torch.randn(rows, 40, generator=made), torch.randn(rows, 77, generator=made)
    x[0] *= 40  # activations of several hundred
    gaps = []
    for product, weight, bias in zip((packed.first, packed.second), weights, biases, strict=True):
        plain = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        for end, function in ENDS.items():
            result = product._by_panels(x, end, other if end in ("add", "mul") else None)
            gaps.append(((result - function(plain, other.double())).abs() / (1 + plain.abs())).max())
    return float(torch.stack(gaps).max())  # not a number if one is not


@needs_compiler
@pytest.mark.parametrize("rows", [*range(1, 17), 32, 64])
def test_a_product_by_panels_is_its_definition(rows):
    assert tuple(ENDS) == kernels.AFTER
    assert linear_gap(rows) < 1e-4


@needs_compiler
@pytest.mark.parametrize("mistake", LINEAR_MISTAKES)
def test_mistakes_of_a_product_are_noticed(mistake, tmp_path, monkeypatch):
    right, wrong = LINEAR_MISTAKES[mistake]
    source = (resources.files("energylm.numerics") / SOURCE).read_text()
    assert right in source
    library = compiled(source.replace(right, wrong), tmp_path)
    monkeypatch.setattr(kernels, "compiled_kernels", lambda: library)
    assert not linear_gap(17) < 1e-3


@needs_compiler
def test_panels_serve_a_thread_alone_with_few_rows(monkeypatch):
    packed = products()[0]
    used = []
    monkeypatch.setattr(PackedLinear, "_by_panels", lambda product, x, after, other: used.append(len(x)) or x)
    for threads, rows in ((1, 64), (1, 65), (2, 64)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        packed.first(torch.zeros(rows, 40))
    assert used == [64]
    monkeypatch.setattr(kernels, "MOST_PANEL_BYTES", 4 * 2 * 96 * 40 - 1)
    assert products()[0].first.panels is None  # too much memory


def test_threads_of_the_pool_compute_alone():
    """torch lets a thread's first operation take over the number that is set by then; in the pool that is one."""
    x = torch.ones(1 << 16)

    def operate(number):
        (x * x).exp().sum()
        return torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        kernels.workers.cache_clear()
        assert side_by_side(operate, [0, 1]) == [1, 1] and torch.get_num_threads() == 2
        kernels.workers.cache_clear()
        with pytest.MonkeyPatch.context() as patched:  # teeth: threads that set the number and do not ask for it
            patched.setattr(kernels, "_compute_alone", partial(torch.set_num_threads, 1))
            assert side_by_side(operate, [0, 1]) == [2, 2]
    finally:
        kernels.workers.cache_clear()
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("vocabulary", [5, 64, 200, 49_152])
def test_weights_of_blocks(vocabulary, monkeypatch):
    logits = 5 * torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(1))
    logits[0, 1::2], logits[1] = float("-inf"), logits[1].clamp(max=-90)  # some forbidden, all small
    logits[2, 0], logits[3, 0], logits[4] = float("nan"), float("inf"), float("-inf")
    largest = logits.amax(-1, keepdim=True)
    exponentials = (logits - largest).double().exp()
    expected = torch.stack([block.sum(-1) for block in exponentials.split(kernels.BLOCK, dim=1)], dim=-1)
    for elements in (kernels.ELEMENTS_A_THREAD, 1):  # by one thread, by several
        monkeypatch.setattr(kernels, "ELEMENTS_A_THREAD", elements)
        torch.testing.assert_close(
            kernels.block_weights(logits, largest), expected, atol=1e-12, rtol=1e-6, equal_nan=True
        )
    assert not torch.allclose(kernels.block_weights(logits[5:], largest[5:] + 1e-5), expected[5:], rtol=1e-6)  # teeth


@needs_compiler
def test_loading_it_leaves_small_numbers_as_they_are():
    """GCC's fast mathematics would flush them to zero in the thread that loads the library."""
    assert compiled_kernels() is not None
    smallest = torch.tensor([1e-40], dtype=torch.float32)
    assert float(smallest * 1.0) > 0 and 5e-324 * 1.0 > 0


@needs_compiler
def test_norms():
    x = torch.linspace(-9, 4, 7 * 37).view(7, 37)
    for epsilon in (1e-6, 0.5):
        expected = x.double() / (x.double().square().mean(-1, keepdim=True) + epsilon).sqrt()
        torch.testing.assert_close(kernels.root_mean_square_norm(x, epsilon=epsilon), expected.float())
    assert compiled_kernels() is not None


@pytest.mark.parametrize("compiler", ["none", "", "false"])  # the last is there and fails
def test_no_compiler_or_one_that_fails_leaves_nothing_behind(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    assert compiled("int attend() { return 0; }", tmp_path / "kernels") is None
    assert not list(tmp_path.rglob("*.so*"))


@needs_compiler
def test_a_full_disk_leaves_the_work_to_torch(tmp_path, monkeypatch):
    def full(path):
        raise DiskFull(f"no space left on the disk while writing {path}")

    monkeypatch.setattr(kernels, "atomic_file", full)
    assert compiled("int attend() { return 0; }", tmp_path) is None


@needs_compiler
def test_a_library_is_compiled_once(tmp_path):
    source = (resources.files("energylm.numerics") / SOURCE).read_text()
    compiled(source, tmp_path)
    (file,) = tmp_path.iterdir()
    when = file.stat().st_mtime_ns
    compiled(source, tmp_path)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [when]


def test_a_trial_process_that_dies_is_noticed(monkeypatch):
    for probe, expected in (("pass", True), ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False)):
        kernels.onednn_bfloat16_works.cache_clear()
        monkeypatch.setattr(kernels, "_PROBE", probe)
        assert kernels.onednn_bfloat16_works() is expected
    kernels.onednn_bfloat16_works.cache_clear()
