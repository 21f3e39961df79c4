"""Compiled code for what torch computes in many small operations on a CPU, and threads that go their own ways.

    a = Σ_j softmax_j(q · k_j) v_j        j over the tokens of a row's context, then those the row has added
    x / √(mean x² + ε)
    Σ_{v in a block} exp(l_v − largest)
    W·x + b, and an activation, a sum or a product with it

Between the products of a step of decoding lie some twenty small operations a layer, which took a quarter of a step of
64 rows of SmolLM2-135M; the sums over blocks of the vocabulary took most of the time of drawing. The C file beside this
one does each in one call without Python's lock, so threads do not wait for each other. Its product of a few rows with
weights calls the next weights from memory while it computes; oneDNN's waits for them. It is compiled for this very
processor on first use, where a C compiler is found (`CC`, else `cc`), in a second or two, and kept in
`ENERGYLM_HOME/kernels`. Without one (or with `CC=none`) torch computes the same.

Relations  `models.packed` is the step, `categorical` draws.
"""

import ctypes
import hashlib
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cache, partialmethod
from importlib import resources
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, rms_norm
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from energylm.config.environment import home_folder
from energylm.errors import DiskFull
from energylm.files import atomic_file

SOURCE = "kernels.c"
BLOCK = 64  # of the vocabulary
COLUMNS = 32  # of a panel of weights: two vectors of 16 numbers
AFTER = ("none", "swish", "gelu tanh", "gelu none", "add", "mul")  # what a product may end with, in the C file's order
PACKED_FOR_ROWS = 256  # oneDNN asks; the layout is as good for other numbers
# GCC's start files for fast mathematics would let the whole process flush small numbers to zero.
FLAGS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-nostartfiles"),
    *(f"-DBLOCK={BLOCK}", f"-DCOLUMNS={COLUMNS}", "-shared", "-fPIC", "-x", "c", "-"),
)
ELEMENTS_A_THREAD = 1 << 18
MOST_PANEL_BYTES, MOST_PANEL_ROWS = 2 << 30, 64
MOST_SECONDS = 60
mkldnn = torch.ops.mkldnn
Part = TypeVar("Part")
Result = TypeVar("Result")
_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
_INT, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_void_p


@dataclass(frozen=True)
class PackedLinear:
    """W·x + b, W in oneDNN's layout, and in panels too for a thread that computes alone with few rows."""

    weight: Tensor
    bias: Tensor | None
    panels: Tensor | None = None  # (⌈E / COLUMNS⌉, D, COLUMNS), 0 beyond E: what a tile of rows reads in one go

    @classmethod
    def of(cls, weight_ED: Tensor, bias_E: Tensor | None) -> "PackedLinear":
        weight = mkldnn._reorder_linear_weight(weight_ED.contiguous(), PACKED_FOR_ROWS)
        return cls(weight, None if bias_E is None else bias_E.contiguous())

    @classmethod
    def after(cls, norm: nn.Module, weight_ED: Tensor, bias_E: Tensor | None) -> "PackedLinear":
        """Of a norm that leaves its gain g and shift c to us: W·(g ⊙ z + c) + b = (W ⊙ g)·z + (W·c + b)."""
        gain_D, shift_D = norm.get_parameter("weight"), getattr(norm, "bias", None)
        if shift_D is not None:
            bias_E = weight_ED @ shift_D + (0 if bias_E is None else bias_E)
        return cls.of(weight_ED * gain_D, bias_E)

    def __call__(self, x_RD: Tensor, *, then: str = "none", form: str = "tanh") -> Tensor:
        if self._suit(x_RD):
            return self._by_panels(x_RD, f"gelu {form}" if then == "gelu" else then, None)
        return cast(Tensor, mkldnn._linear_pointwise(x_RD, self.weight, self.bias, then, [], form))

    def plus(self, x_RD: Tensor, other: Tensor, *, by: str = "add") -> Tensor:
        if self._suit(x_RD):
            return self._by_panels(x_RD, by, other.contiguous())
        return cast(Tensor, mkldnn._linear_pointwise.binary(x_RD, other, self.weight, self.bias, by))

    times = partialmethod(plus, by="mul")

    def _suit(self, x_RD: Tensor) -> bool:
        """Whether panels are there and faster: with many rows weights are not waited for."""
        return self.panels is not None and len(x_RD) <= MOST_PANEL_ROWS and torch.get_num_threads() == 1

    def _by_panels(self, x_RD: Tensor, after: str, other_RE: Tensor | None) -> Tensor:
        kernels = compiled_kernels()
        assert kernels is not None and self.panels is not None  # who has panels has the code
        x_RD = x_RD.contiguous()
        rows, inner, columns = len(x_RD), x_RD.shape[1], self.weight.shape[0]
        result_RE = x_RD.new_empty(rows, columns)
        given = (x_RD, self.panels, self.bias, other_RE, result_RE)
        pointers = (None if tensor is None else tensor.data_ptr() for tensor in given)
        kernels.linear(rows, inner, columns, AFTER.index(after), *pointers)
        return result_RE


def in_panels(parts: Sequence[Any]) -> list[Any]:
    """Dataclasses whose products have panels as well, in one piece of memory in the order of their fields: the end of
    one calls the beginning of the next. As they are without compiled code, and where that memory would be too much."""
    products = [product for part in parts for product in _products(part).values()]
    shapes = [(-(-product.weight.shape[0] // COLUMNS), product.weight.shape[1], COLUMNS) for product in products]
    sizes = [math.prod(shape) for shape in shapes]
    if compiled_kernels() is None or 4 * sum(sizes) > MOST_PANEL_BYTES:
        return list(parts)
    memory = iter(zip(torch.empty(sum(sizes)).split(sizes), shapes, strict=True))

    def panelled(product: PackedLinear) -> PackedLinear:
        numbers, shape = next(memory)
        weight_ED = pad(product.weight.to_dense(), (0, 0, 0, -product.weight.shape[0] % COLUMNS))
        panels = numbers.view(shape).copy_(weight_ED.view(-1, COLUMNS, shape[1]).transpose(1, 2))
        return replace(product, panels=panels)

    made = [{name: panelled(product) for name, product in _products(part).items()} for part in parts]
    return [replace(part, **products) for part, products in zip(parts, made, strict=True)]


def _products(part: Any) -> dict[str, PackedLinear]:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in values.items() if isinstance(value, PackedLinear)}


@dataclass(frozen=True)
class LayerCache:
    """What a layer holds of B contexts and N copies of each, with K heads of keys."""

    prefix_keys: Tensor  # (B·K, D, P), real up to their lengths
    prefix_values: Tensor  # (B·K, P, D)
    prefix_lengths_B: Tensor
    keys: Tensor  # (B, K, N, T, D), what each row has added
    values: Tensor
    filled: int  # of T, the newest token included


def attend(projected_RE: Tensor, rotation_BD: Tensor | None, cache: LayerCache) -> Tensor:
    """(R, H·D): attention of the newest token of every row, whose queries, keys and values `projected_RE` holds; its
    key and value are written into the cache. A rotation is complex, (B, D / 2), and turns neighbours."""
    kernels = compiled_kernels()
    if kernels is None:
        return attend_by_torch(projected_RE, rotation_BD, cache)
    contexts, kv_heads, copies, room, width = cache.keys.shape
    heads = projected_RE.shape[-1] // width - 2 * kv_heads
    attended_RE = projected_RE.new_empty(contexts * copies, heads * width)
    failed = kernels.attend(
        *(contexts, kv_heads, copies, heads // kv_heads, width, cache.prefix_keys.shape[-1], room, cache.filled),
        cache.prefix_lengths_B.data_ptr(),
        projected_RE.data_ptr(),
        None if rotation_BD is None else rotation_BD.data_ptr(),
        *(held.data_ptr() for held in (cache.prefix_keys, cache.prefix_values, cache.keys, cache.values)),
        attended_RE.data_ptr(),
    )
    if failed:
        raise MemoryError("no memory for the scores of attention")
    return attended_RE


def attend_by_torch(projected_RE: Tensor, rotation_BD: Tensor | None, cache: LayerCache) -> Tensor:
    keys, values, filled = cache.keys, cache.values, cache.filled
    contexts, kv_heads, copies, _, width = keys.shape
    projected = projected_RE.view(contexts, copies, -1, width)
    heads = projected.shape[2] - 2 * kv_heads
    group = heads // kv_heads
    turned, new_value = projected[:, :, : heads + kv_heads], projected[:, :, heads + kv_heads :]
    if rotation_BD is not None:
        pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * rotation_BD[:, None, None]).flatten(-2)
    query = turned[:, :, :heads].unflatten(2, (kv_heads, group)).transpose(1, 2)
    query = query.contiguous().view(contexts * kv_heads, copies * group, width)
    keys[:, :, :, filled - 1] = turned[:, :, heads:].transpose(1, 2)
    values[:, :, :, filled - 1] = new_value.transpose(1, 2)

    own_keys, own_values = (held.flatten(0, 2)[:, :filled] for held in (keys, values))
    prefix_tokens = cache.prefix_keys.shape[-1]
    prefix_score = (query @ cache.prefix_keys).view(-1, group, prefix_tokens)
    is_padding_BP = torch.arange(prefix_tokens) >= cache.prefix_lengths_B[:, None]
    prefix_score.view(contexts, -1, prefix_tokens).masked_fill_(is_padding_BP[:, None], float("-inf"))
    weight = torch.cat([prefix_score, query.view(-1, group, width) @ own_keys.mT], dim=-1).softmax(-1)
    prefix_weight = weight.view(contexts * kv_heads, copies * group, -1)[..., :prefix_tokens]
    attended = torch.bmm(prefix_weight, cache.prefix_values).view(-1, group, width)
    attended = torch.baddbmm(attended, weight[..., prefix_tokens:], own_values)
    return attended.view(contexts, kv_heads, copies, -1).transpose(1, 2).reshape(contexts * copies, -1)


def rotary_pairs(width: int) -> Tensor:
    """The order in which i and i + width/2, which a rotation turns together, are neighbours."""
    return torch.arange(width).view(2, -1).T.flatten()


def root_mean_square_norm(x_RE: Tensor, *, epsilon: float) -> Tensor:
    kernels = compiled_kernels()
    if kernels is None:
        return rms_norm(x_RE, x_RE.shape[-1:], eps=epsilon)
    x_RE = x_RE.contiguous()
    normalised_RE = torch.empty_like(x_RE)
    kernels.normalise(*x_RE.shape, epsilon, x_RE.data_ptr(), normalised_RE.data_ptr())
    return normalised_RE


def block_weights(logits_RV: Tensor, largest_R1: Tensor) -> Tensor | None:
    """(R, ⌈V / BLOCK⌉) float64: Σ exp(logit − largest) over each block; None where torch must compute it."""
    if logits_RV.dtype != torch.float32 or logits_RV.device.type != "cpu" or not logits_RV.is_contiguous():
        return None
    if logits_RV.requires_grad or is_in_torch_dispatch_mode() or (kernels := compiled_kernels()) is None:
        return None
    rows, vocabulary = logits_RV.shape
    largest_R1 = largest_R1.to(torch.float32).contiguous()
    weights_RM = torch.empty(rows, -(-vocabulary // BLOCK), dtype=torch.float64)

    def add_up(part: slice) -> None:
        tensors = (logits_RV[part], largest_R1[part], weights_RM[part])
        kernels.block_weights(part.stop - part.start, vocabulary, *(tensor.data_ptr() for tensor in tensors))

    side_by_side(add_up, row_parts(logits_RV))
    return weights_RM


def row_parts(logits_RV: Tensor) -> list[slice]:
    """Rows for each thread; all in one part on other devices, where they are few, or where somebody watches."""
    threads = min(torch.get_num_threads(), logits_RV.numel() // ELEMENTS_A_THREAD)
    if logits_RV.device.type != "cpu" or is_in_torch_dispatch_mode():
        threads = 1
    return [copies for _, copies in cut_rows(1, len(logits_RV), threads)]


def cut_rows(contexts: int, copies: int, threads: int) -> list[tuple[slice, slice]]:
    """All rows in `threads` parts: some of the copies of every context, or some contexts where these are more."""
    longer = max(contexts, copies)
    parts = max(1, min(threads, longer))
    edges = [longer * part // parts for part in range(parts + 1)]
    pieces = [slice(start, stop) for start, stop in pairwise(edges)]
    if copies >= contexts:
        return [(slice(0, contexts), piece) for piece in pieces]
    return [(piece, slice(0, copies)) for piece in pieces]


@cache
def workers(count: int, process: int) -> ThreadPoolExecutor:
    """Threads of which each computes alone; those of `process`, since a forked child has none of its parent's."""
    usual, all_there = torch.get_num_threads(), Barrier(count + 1)
    pool = ThreadPoolExecutor(count, "energylm-rows", initializer=_compute_alone)
    for _ in range(count):
        pool.submit(all_there.wait)
    all_there.wait()
    torch.set_num_threads(usual)  # for threads to come; those of the pool keep theirs
    return pool


def _compute_alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first question takes over what is set by then, and so does its first operation


def side_by_side(read: Callable[[Part], Result], parts: list[Part]) -> list[Result]:
    """What `read` gives for each part: a thread each, or torch's own for a single part."""
    if len(parts) == 1:
        return [read(parts[0])]
    return list(workers(len(parts), os.getpid()).map(read, parts))


@cache
def compiled_kernels() -> ctypes.CDLL | None:
    """The functions of the C file; None where none can be compiled."""
    return compiled((resources.files("energylm.numerics") / SOURCE).read_text(), home_folder() / "kernels")


def compiled(source: str, folder: Path) -> ctypes.CDLL | None:
    """`source` as a library in `folder`, compiled unless it lies there; None without a compiler that can."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        return None
    identity = hashlib.sha256("\n".join([source, *command, *FLAGS, _processor()]).encode()).hexdigest()
    path = folder / f"kernels-{identity[:20]}.so"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(path) as made:
                given = [*command, *FLAGS, "-o", str(made), "-lm"]
                subprocess.run(given, input=source.encode(), capture_output=True, check=True, timeout=MOST_SECONDS)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError, DiskFull):  # whatever it is, torch computes the same
        return None
    library.attend.argtypes = [_INT] * 8 + [_POINTER] * 8
    library.linear.argtypes, library.linear.restype = [_INT] * 4 + [_POINTER] * 5, None
    library.block_weights.argtypes, library.block_weights.restype = [_INT] * 2 + [_POINTER] * 3, None
    library.normalise.argtypes, library.normalise.restype = [_INT, _INT, _FLOAT, _POINTER, _POINTER], None
    return library


def multiplies_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 by itself: about twice as fast as float32, elsewhere far slower."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()) and onednn_bfloat16_works()


@cache
def onednn_bfloat16_works() -> bool:
    """Some virtual machines announce AMX but do not grant it: oneDNN's product then kills the process. Tried in a
    process of its own."""
    return subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False).returncode == 0


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line for line in lines if line.startswith("flags")), platform.processor())
