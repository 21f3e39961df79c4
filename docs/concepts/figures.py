"""The figures of the concept pages, from languages so small that every number is a sum. `make figures` draws them.

Each function returns the numbers of one figure; `figures.json` keeps them, and a test compares them with what the
functions say today.
"""

import json
import math
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.figure import Figure

from energylm.estimators.log_partition import log_partition
from energylm.plots import COLOURS, LinePlot, Series, png_of
from energylm.testing import TabularEnergy, TabularLanguageModel, exact_joint, exact_language_model

FOLDER = Path(__file__).parent
COUNTS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
REPEATS = 400  # runs whose mean is drawn: expectations, not luck


def sticky(history: list[int]) -> list[float]:
    """A language of two tokens that likes to say again what it said."""
    return [0.5, 0.5] if not history else [0.8, 0.2] if history[-1] == 0 else [0.2, 0.8]


def small_language(length: int, strength: float) -> tuple[TabularLanguageModel, TabularEnergy]:
    """The sticky language, and an energy that does not like neighbours to be the same."""
    model = TabularLanguageModel.from_function(sticky, vocabulary_size=2, length=length)
    same = TabularEnergy.from_function(
        lambda x: strength * sum(a == b for a, b in pairwise(x)), vocabulary_size=2, length=length
    )
    return model, same


def energy() -> dict[str, list]:
    """Base, energy and joint of all sequences of three tokens."""
    model, same = small_language(3, 1.5)
    base, joint = exact_language_model(model, max_new_tokens=3), exact_joint(model, same, max_new_tokens=3)
    energies = same.energies(base.tokens, base.lengths)
    names = ["".join("ab"[token] for token in row) for row in base.tokens.tolist()]
    return {
        "names": names,
        "base": base.probabilities.tolist(),
        "energy": energies.tolist(),
        "joint": joint.probabilities.tolist(),
    }


def interval() -> dict[str, list]:
    """The perplexity that a study would print: mean of both ends over many runs, against n and the truth."""
    length = 10
    model, same = small_language(length, 1.5)
    base, joint = exact_language_model(model, max_new_tokens=length), exact_joint(model, same, max_new_tokens=length)
    log_weight = -same.energies(base.tokens, base.lengths)
    cross = float((joint.probabilities * (base.log_prob + log_weight)).sum())  # of the joint model's own texts
    generator = torch.Generator().manual_seed(0)
    lower, upper = [], []
    for n in COUNTS:
        drawn = torch.multinomial(base.probabilities, REPEATS * n, replacement=True, generator=generator)
        told = log_partition(log_weight[drawn].reshape(REPEATS, n))
        lower.append(math.exp((float(told.lower.mean()) - cross) / length))
        upper.append(math.exp((float(told.upper.mean()) - cross) / length))
    truth = math.exp((joint.log_partition - cross) / length)
    wrong = math.exp(-cross / length)  # without log Z: no perplexity at all
    return {"n": COUNTS, "lower": lower, "upper": upper, "truth": [truth], "without_log_z": [wrong]}


def importance_sampling() -> dict[str, list]:
    """The share of n draws that importance weights leave, exactly: (E w)² / E w², against the length of the text."""
    lengths = list(range(1, 15))
    shares: dict[str, list] = {"length": lengths}
    for strength in (0.25, 0.5, 1.0, 2.0):
        shares[f"{strength:g}"] = []
        for length in lengths:
            model, same = small_language(length, strength)
            base = exact_language_model(model, max_new_tokens=length)
            log_weight = -same.energies(base.tokens, base.lengths)
            first, second = ((base.log_prob + power * log_weight).logsumexp(0) for power in (1, 2))
            shares[f"{strength:g}"].append(float((2 * first - second).exp()))
    return shares


def draw(numbers: dict[str, dict[str, list]], folder: Path) -> None:
    told = numbers["energy"]
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    at = range(len(told["names"]))
    axes.bar([x - 0.2 for x in at], told["base"], 0.4, label="language model", color=COLOURS[0])
    axes.bar([x + 0.2 for x in at], told["joint"], 0.4, label="joint model", color=COLOURS[1])
    axes.set_xticks(
        list(at), [f"{name}\nE={value:g}" for name, value in zip(told["names"], told["energy"], strict=True)]
    )
    axes.set_ylabel("probability")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    (folder / "energy.png").write_bytes(png_of(figure))
    told = numbers["interval"]
    lines = [Series("lower end", told["n"], told["lower"]), Series("upper end", told["n"], told["upper"])]
    lines.append(Series("truth, enumerated", told["n"], told["truth"] * len(told["n"])))
    lines.append(Series("log Z left out", told["n"], told["without_log_z"] * len(told["n"])))
    plot = LinePlot(lines, x_label="samples for log Z", y_label="perplexity a token", log_x=True)
    (folder / "interval.png").write_bytes(plot.png())
    told = numbers["importance_sampling"]
    lines = [Series(f"strength {name}", told["length"], told[name]) for name in told if name != "length"]
    plot = LinePlot(lines, x_label="tokens of the continuation", y_label="effective share of the draws")
    (folder / "importance_sampling.png").write_bytes(plot.png())


def computed() -> dict[str, dict[str, list]]:
    return {"energy": energy(), "interval": interval(), "importance_sampling": importance_sampling()}


if __name__ == "__main__":
    figures = computed()
    (FOLDER / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draw(figures, FOLDER)
