"""`energylm score`: a number for every text, from any model that has one."""

from typing import Annotated

import typer

METHOD_HELP = "log-likelihood or pseudo-log-likelihood; by default what the model has."
MASKING_HELP = "What a masked model hides while it scores a token: token, or within-word (the word's later tokens too)."
CASING_HELP = "Read texts in lower, upper or sentence case (default: keep)."
EOS_HELP = "Score the end-of-sequence token too (causal models)."
LONG_HELP = "Refuse texts longer than the model; by default they are read in overlapping windows, and it is said."
DEVICE_HELP = "cpu, cuda, cuda:1 or mps (default: a GPU where there is one, else the CPU)."
DTYPE_HELP = (
    "float32, float64, bfloat16 or float16 weights of causal models (default: float32 on a CPU, else as saved)."
)

Method = Annotated[str | None, typer.Option(help=METHOD_HELP, show_default=False)]
Masking = Annotated[str | None, typer.Option(help=MASKING_HELP, show_default=False)]
Casing = Annotated[str | None, typer.Option(help=CASING_HELP, show_default=False)]
Eos = Annotated[bool, typer.Option("--eos", help=EOS_HELP)]
RefuseLong = Annotated[bool, typer.Option("--refuse-long", help=LONG_HELP)]
Device = Annotated[str | None, typer.Option(help=DEVICE_HELP, show_default=False)]
Dtype = Annotated[str | None, typer.Option(help=DTYPE_HELP, show_default=False)]
