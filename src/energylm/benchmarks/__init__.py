"""Benchmarks that know their bars: `energylm bench NAME`. Each name is a module that has `run(options)`."""

BENCHMARKS = {
    "shared-prefix": "energylm.benchmarks.shared_prefix",
    "smollm": "energylm.benchmarks.smollm",
    "busy": "energylm.benchmarks.busy",
    "scaling": "energylm.benchmarks.scaling",
    "corpus": "energylm.benchmarks.corpus",
    "windows": "energylm.benchmarks.windows",
    "train": "energylm.benchmarks.train",
    "residual": "energylm.benchmarks.residual",
    "best-of-n": "energylm.benchmarks.best_of_n",
    "detect": "energylm.benchmarks.detect",
    "mcmc": "energylm.benchmarks.mcmc",
    "smc": "energylm.benchmarks.smc",
    "soft-beam": "energylm.benchmarks.soft_beam",
    "rerank": "energylm.benchmarks.rerank",
    "pll": "energylm.benchmarks.pll",
    "ray": "energylm.benchmarks.ray",
    "serve": "energylm.benchmarks.serve",
}
