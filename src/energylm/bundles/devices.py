"""Where models run and in which precision, decided in one place.

    device   what was asked for, if this machine has it; else the accelerator that torch finds (CUDA, MPS, XPU …), else
             the CPU
    dtype    what was asked for; else float32 on a CPU, where smaller types crawl (but bfloat16 on processors that have
             it), and the saved one elsewhere. "int8" rounds the linear layers of a network that only reads, on a CPU
             (`models.quantized`)
    batch_tokens    tokens of texts that a network reads in one pass at most; else as many as it reads fastest. It
                    changes time and memory, and numbers by their rounding only

Relations  `model_folder` and `causal_networks` load networks with these; every `device=` and `dtype=` ends here.
           `models.contexts` asks a network for its `batch_tokens`.
"""

import torch

from energylm.errors import ConfigError, ModelError
from energylm.models.quantized import quantize
from energylm.numerics.kernels import multiplies_bfloat16

Device = torch.device | str | None
DType = torch.dtype | str | None

INT8 = ("int8", "torch.int8", torch.int8)
_CURE = "leave it out (an accelerator is taken where there is one), or give cpu"


def usable_device(device: Device = None) -> torch.device:
    """The device that was asked for, refused where this machine does not have it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return accelerator or torch.device("cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise ConfigError(
            f"device {str(device)!r} is none that torch knows, e.g. cpu, cuda or cuda:1; {_CURE}"
        ) from None
    if wanted.type == "cpu":
        return wanted
    has = torch.accelerator.device_count() if accelerator is not None and accelerator.type == wanted.type else 0
    if (wanted.index or 0) >= has:
        raise ConfigError(f"device {wanted} came, but this machine has {has} of type {wanted.type}; {_CURE}")
    return wanted


def usable_dtype(dtype: DType, device: torch.device) -> torch.dtype | None:
    """The dtype that was asked for, by itself or by its name; None, where nothing was, on all but a CPU."""
    named = getattr(torch, dtype.removeprefix("torch."), dtype) if isinstance(dtype, str) else dtype
    if named is None:
        return torch.float32 if device.type == "cpu" else None
    if not isinstance(named, torch.dtype) or not named.is_floating_point:
        raise ModelError(f"dtype {dtype!r} is no type of weights; give e.g. 'float32' or 'int8', or leave it out")
    if device.type != "cpu" or named in (torch.float32, torch.float64):
        return named
    if named != torch.bfloat16 or not multiplies_bfloat16():
        # A hundred times slower than float32, and an illegal instruction on some machines.
        raise ModelError(f"{named} came for a CPU that needs torch.float32; leave dtype out, or use a GPU")
    return named


def move(network: torch.nn.Module, device: Device, dtype: DType, batch_tokens: int | None = None) -> None:
    """Put a network where it is wanted, in the precision that is wanted; what is None stays as it is."""
    if batch_tokens is not None:
        if isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int) or batch_tokens < 1:
            raise ConfigError(f"batch_tokens {batch_tokens!r} came, expected a number of tokens, 1 at least")
        network.batch_tokens = batch_tokens  # type: ignore[assignment]  # no parameter and no module: a plain number
    now = next(network.parameters())
    to_device = now.device if device is None else usable_device(device)
    to_dtype = None if dtype is None or dtype in INT8 else usable_dtype(dtype, to_device)
    if dtype is None and to_device.type == "cpu" and now.device.type != "cpu" and now.dtype != torch.float64:
        to_dtype = torch.float32
    network.to(device=to_device, dtype=to_dtype)
    if dtype in INT8:
        quantize(network)
