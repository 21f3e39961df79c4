"""What the samplers of long texts are worth: measured with SmolLM2 and an energy trained here, kept, drawn.

    python docs/samplers.py measure WORK      takes an hour of one core; a killed run goes on where it stopped
    python docs/samplers.py draw              docs/samplers.json → docs/samplers.png and the tables of docs/choose.md

WORK holds what three commands made (LM = smollm2-135m): `energylm corpus build sotu:modern --tokenizer LM -o corpus`,
`energylm negatives LM corpus -o negatives -k 3 --length 288 --prefix-tokens 32 --contexts 64 --documents within`, and
`energylm energy train negatives --corpus corpus --init minilm-l6 --reads text -o energy -k 1 --steps 24 --batch 8` with
`--set` validation_fraction=0.25, validation_contexts=16, validation_negatives=3, training.validation.every_steps=12,
training.schedule.warmup_steps=3.

Both samplers draw `RUNS` runs of `N` texts for each context. Resampling estimates Z by the mean weight of a run,
smc by its particles; both without bias. What a run is worth is told in the same way for both:

    error      the root of the mean square of log Ẑ − log Z, over contexts and runs; Z is the mean of all runs of both
    effective  n / (1 + n · error²)         for resampling this is Kish's effective sample size, up to the logarithm
    width      4 × the standard deviation of log Ẑ between the runs of a context: a 95 % interval of one run
"""

import json
import math
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from energylm import Energy, LanguageModel, ResidualModel
from energylm.bundles.energy_binding import BoundEnergy, context_energies, energies_and_states
from energylm.bundles.joint_texts import Context
from energylm.bundles.weighted_draws import CandidatePool
from energylm.config.sampling import JointSampling, Truncation
from energylm.data.contrast import split_affix
from energylm.data.corpus import Corpus
from energylm.data.negatives import open_negatives_sources
from energylm.data.windows import Windows
from energylm.energies.prefix_value import fit_prefix_value
from energylm.files import write_json
from energylm.plots import LinePlot, Series
from energylm.progress import progress
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.written_rows import ReadContexts
from energylm.tables import Table, to_markdown

DOCS = Path(__file__).parent
KEPT, PAGE = DOCS / "samplers.json", DOCS / "choose.md"
LM, PREFIX, CONTEXTS, RUNS, N, BLOCKS = "smollm2-135m", 32, 2, 3, 16, 8
LENGTHS = (16, 64, 128, 256)
SPREAD = 2.5  # nats of βE, where β is not 1: an energy that is too strong for resampling
CUTS = (16, 32, 64, 96, 128, 192, 256)
ALPHA, POWER_TOKENS, CHAINS, MOVES = 4.0, 48, 4, 15


def readings(folder: Path, bound: BoundEnergy) -> dict[str, torch.Tensor]:
    """Energies and states of the negatives, cut at `CUTS`."""
    path = folder / "readings.safetensors"
    if not path.is_file():
        (source,) = open_negatives_sources([str(folder / "negatives")], [str(folder / "corpus")])
        rows = source.negatives.rows(np.arange(len(source.negatives)))
        windows = source.negatives.corpus_windows(source.corpus).gather(rows.window_B)
        contexts = split_affix(windows, rows.context_length_B, side="suffix").contexts
        energies, states = [], []
        with progress("reading negatives", total=len(contexts) * len(CUTS), unit="cut") as bar:
            for ids, tokens in zip(contexts, torch.from_numpy(rows.tokens_BKT).long(), strict=True):
                context = [Context(ids.tolist(), ids.tolist())]
                of_cuts = []
                for cut in CUTS:
                    lengths = torch.full((1, len(tokens)), cut)
                    of_cuts.append(energies_and_states(bound, context, tokens[None], lengths))
                    bar.advance()
                energies.append(torch.stack([energy[0] for energy, _ in of_cuts], dim=-1))
                states.append(torch.stack([state[0] for _, state in of_cuts], dim=1))
        save_file({"energy": torch.stack(energies), "states": torch.stack(states).float()}, path)
    return load_file(path)


def value(folder: Path, read: dict[str, torch.Tensor], length: int, beta: float) -> dict[str, Any]:
    """The fitted value of texts of a length at β, saved as `energylm energy value` would."""
    before = [index for index, cut in enumerate(CUTS) if cut < length]
    energy = beta * read["energy"]
    fitted = fit_prefix_value(
        energy[..., before],
        read["states"][:, :, before],
        torch.ones(1, 1, 1, dtype=torch.bool),
        torch.tensor([CUTS[index] for index in before]) / length,
        energy[..., CUTS.index(length)],
    )
    own = folder / f"value-{length}-{beta:g}"
    own.mkdir(exist_ok=True)
    fitted.save(own)
    told = {key: getattr(fitted, key) for key in ("loss", "loss_of_energy_alone", "loss_without")}
    return {"length": length, "beta": beta, "slopes": fitted.slopes, **told}


def drawn(folder: Path, lm: LanguageModel, bound: BoundEnergy, contexts: list[list[int]]) -> list[dict[str, Any]]:
    """RUNS · N texts of each context, read at every length: the pools of resampling, the shorter inside the longer."""
    pools = []
    for number, ids in enumerate(contexts):
        path = folder / f"pool-{number}.json"
        if not path.is_file():
            rows = ReadContexts(lm.decoder(), [ids], n=RUNS * N).rows(max(LENGTHS))
            choices = RowChoices(row_keys(0, torch.full((RUNS * N,), number), torch.arange(RUNS * N)))
            pool: dict[str, Any] = {"context": number, "energy": {}, "seconds": {}}
            drawing = 0.0
            with progress(f"pool {number}", total=RUNS * N * max(LENGTHS), unit="token") as bar:
                for length in LENGTHS:
                    began = time.process_time()
                    rows.write(length, choices, progress=bar)
                    drawing += time.process_time() - began
                    began = time.process_time()
                    lengths = torch.full((1, RUNS * N), length)
                    energy = context_energies(bound, [Context(ids, ids)], rows.tokens_RT[None, :, :length], lengths)
                    pool["energy"][str(length)] = energy[0].tolist()
                    pool["seconds"][str(length)] = drawing + time.process_time() - began
            write_json(path, pool)
        pools.append(json.loads(path.read_text(encoding="utf-8")))
    return pools


def particles(folder: Path, joint: ResidualModel, ids: list[int], number: int, **options: Any) -> dict[str, Any]:
    """RUNS runs of N particles for a context."""
    length, beta, lookahead = options["length"], options["beta"], options["lookahead"]
    path = folder / f"smc-{number}-{length}-{beta:g}-{lookahead}.json"
    if not path.is_file():
        own = JointSampling(
            sampler="smc",
            n=N,
            max_new_tokens=length,
            block_tokens=max(1, length // BLOCKS),
            stop_at_eos=False,
            lookahead=str(folder / f"value-{length}-{beta:g}") if lookahead == "value" else lookahead,
        )
        began = time.process_time()
        samples = joint.sample_batch([ids] * RUNS, own, seed=1, first_context=RUNS * number)
        result = {
            "context": number,
            **options,
            "log_z": [sample.report.log_partition for sample in samples],
            "families": [sample.report.effective for sample in samples],
            "energy": [float(sample.energies.mean()) for sample in samples],
            "seconds": time.process_time() - began,
        }
        write_json(path, result)
    return json.loads(path.read_text(encoding="utf-8"))


def powers(folder: Path, lm: LanguageModel, contexts: list[list[int]]) -> list[dict[str, Any]]:
    """P^α by two samplers, CHAINS texts of each context and (MOVES + 1) · POWER_TOKENS tokens drawn for each; what low
    temperature gives for as many tokens, and for those of one text."""
    path = folder / "powers.json"
    if not path.is_file():
        flat = ResidualModel(lm, Energy.from_function(lambda texts: [0.0] * len(texts), better="higher", name="none"))
        cold = {"max_new_tokens": POWER_TOKENS, "stop_at_eos": False, "truncation": Truncation(temperature=1 / ALPHA)}
        power = {"power": ALPHA, "weights": "corrected"}
        pool_options = JointSampling(n=MOVES + 1, **power, **cold)
        chain_options = JointSampling(sampler="suffix", n=CHAINS, draws=CHAINS, moves=MOVES, **power, **cold)
        texts: dict[str, list[dict[str, Any]]] = {}
        verdicts = []

        def keep(way: str, number: int, pool: CandidatePool, indices: list[int]) -> None:
            texts.setdefault(way, []).extend(
                {"context": number, "log_prob": float(pool.log_prob[index]), "tokens": pool.candidate(index)}
                for index in indices
            )

        for number, ids in enumerate(contexts):
            samples = flat.sample_batch([ids] * CHAINS, pool_options, seed=2, first_context=CHAINS * number)
            for sample in samples:
                (pool,) = sample.pools
                keep(f"temperature {1 / ALPHA:g}", number, pool, [0])
                keep(
                    f"temperature {1 / ALPHA:g}, likeliest of {MOVES + 1}", number, pool, [int(pool.log_prob.argmax())]
                )
                keep(f"power {ALPHA:g}, resample, n = {MOVES + 1}", number, pool, pool.kept)
            (chains,) = flat.sample_batch([ids], chain_options, seed=3, first_context=number)
            keep(f"power {ALPHA:g}, suffix, {MOVES} moves", number, chains.pools[0], chains.pools[0].kept)
            verdicts.append(chains.report.verdict)
        write_json(path, {"ways": [{"way": way, "texts": own} for way, own in texts.items()], "verdicts": verdicts})
    return json.loads(path.read_text(encoding="utf-8"))["ways"]


def measure(folder: Path) -> None:
    lm = LanguageModel.from_pretrained(LM).without_special_tokens()
    energy = Energy.load(folder / "energy" / "model")
    bound = energy.bind(lm)
    corpus = Corpus.open(folder / "corpus")
    windows = Windows(corpus, "valid", length=PREFIX + max(LENGTHS), documents="within")
    contexts = [row[:PREFIX] for row in windows.gather(np.arange(CONTEXTS) * (len(windows) // CONTEXTS)).tolist()]
    read = readings(folder, bound)
    kept = {"n": N, "runs": RUNS, "pools": drawn(folder, lm, bound, contexts), "values": [], "smc": []}
    strong = {length: round(SPREAD / spread(kept["pools"], length), 1) for length in LENGTHS}
    plan = [(128, strong[128]), (256, strong[256]), (128, 1.0), (64, strong[64]), (16, strong[16])]
    for length, beta in [*plan, (256, 1.0), (64, 1.0), (16, 1.0)]:
        joint = ResidualModel(lm, energy.with_beta(beta), memory_budget_bytes=2 << 30)
        lookahead = "energy"
        if length > CUTS[0]:
            lookahead = "value"
            kept["values"].append(value(folder, read, length, beta))
            print(json.dumps(kept["values"][-1]), flush=True)
        for number, ids in enumerate(contexts):
            run = particles(folder, joint, ids, number, length=length, beta=beta, lookahead=lookahead)
            kept["smc"].append(run)
            print(json.dumps(run), flush=True)
        if (length, beta) == plan[1]:
            kept["powers"] = powers(folder, lm, contexts)
        write_json(KEPT, kept | {"machine": {"threads": torch.get_num_threads(), "torch": torch.__version__}})
        print(to_markdown(table(kept)), flush=True)


def spread(pools: list[dict[str, Any]], length: int) -> float:
    """Standard deviation of the energy of texts of a context."""
    return sum(float(torch.tensor(pool["energy"][str(length)]).std()) for pool in pools) / len(pools)


def worth(log_z: list[list[float]], truth: list[float], n: int) -> dict[str, float]:
    """Of runs of contexts whose log Z is `truth`."""
    errors = [value - log for values, log in zip(log_z, truth, strict=True) for value in values]
    error = math.sqrt(sum(value**2 for value in errors) / len(errors))
    variance = sum(float(torch.tensor(values).double().var()) for values in log_z) / len(log_z)
    return {"error": error, "effective": n / (1 + n * error**2), "width": 4 * math.sqrt(variance)}


def log_mean_exp(values: list[float]) -> float:
    return float(torch.tensor(values).double().logsumexp(0)) - math.log(len(values))


def compared(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each β, length and sampler; both samplers against the same log Z."""
    rows, n, runs = [], kept["n"], kept["runs"]
    groups: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for run in kept["smc"]:
        groups.setdefault((run["beta"], run["length"]), []).append(run)
    for (beta, length), of_contexts in sorted(groups.items(), key=lambda item: (item[0][0] != 1, item[0][1])):
        pools = [kept["pools"][run["context"]] for run in of_contexts]
        weights = [(-beta * torch.tensor(pool["energy"][str(length)])).view(runs, n).tolist() for pool in pools]
        plain = [[log_mean_exp(run) for run in pool] for pool in weights]
        smc = [run["log_z"] for run in of_contexts]
        truth = [log_mean_exp(first + second) for first, second in zip(plain, smc, strict=True)]
        shared = {"beta": beta, "length": length, "spread": beta * spread(pools, length)}
        seconds = sum(pool["seconds"][str(length)] for pool in pools), sum(run["seconds"] for run in of_contexts)
        for name, log_z, time_taken in (("resample", plain, seconds[0]), ("smc", smc, seconds[1])):
            told = worth(log_z, truth, n)
            per_second = told["effective"] * runs * len(pools) / time_taken
            rows.append(shared | {"sampler": name, **told, "effective_per_second": per_second})
    return rows


def table(kept: dict[str, Any]) -> Table:
    columns = ["β", "tokens", "spread of βE", "sampler", "effective", "error of log Z", "width", "effective a second"]
    keys = ["beta", "length", "spread", "sampler", "effective", "error", "width", "effective_per_second"]
    digits = {"spread": 1, "effective": 1, "error": 2, "width": 2, "effective_per_second": 2}
    rows = [[round(row[key], digits[key]) if key in digits else row[key] for key in keys] for row in compared(kept)]
    sizes = f"{kept['runs']} runs of {kept['n']} texts for each of {len(kept['pools'])} contexts; seconds of one core"
    return Table(columns, rows, convention=sizes)


def power_table(kept: dict[str, Any]) -> Table:
    rows = []
    for way in kept["powers"]:
        texts = way["texts"]
        tokens = sum(len(text["tokens"]) for text in texts)
        pairs = [
            [pair for text in texts if text["context"] == number for pair in pairwise(text["tokens"])]
            for number in sorted({text["context"] for text in texts})
        ]
        distinct = sum(len(set(of_context)) / len(of_context) for of_context in pairs) / len(pairs)
        different = len({(text["context"], *text["tokens"]) for text in texts}) / len(texts)
        log_prob = sum(text["log_prob"] for text in texts)
        rows.append([way["way"], len(texts), round(log_prob / tokens, 3), round(distinct, 3), round(different, 3)])
    columns = ["way", "texts", "mean log-probability a token", "distinct pairs of tokens", "different texts"]
    return Table(columns, rows)


def figure(kept: dict[str, Any]) -> LinePlot:
    lines = []
    for name, is_trained in (("β = 1", True), (f"spread {SPREAD:g}", False)):
        for sampler in ("resample", "smc"):
            rows = [row for row in compared(kept) if row["sampler"] == sampler and (row["beta"] == 1) is is_trained]
            if rows:
                lengths, errors = [row["length"] for row in rows], [row["error"] for row in rows]
                lines.append(Series(f"{sampler}, {name}", lengths, errors))
    return LinePlot(lines, x_label="new tokens", y_label="error of log Z", log_x=True, log_y=True)


def page(text: str, kept: dict[str, Any]) -> str:
    """The page with its tables made from what is kept."""
    for name, made in (("samplers", table(kept)), ("powers", power_table(kept))):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{to_markdown(made).strip()}\n{end}{rest.partition(end)[2]}"
    return text


def draw() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    figure(kept).save(DOCS / "samplers.png")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        measure(Path(sys.argv[2]))
    else:
        draw()
