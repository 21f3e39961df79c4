"""Benchmarks that know their bars: `energylm bench NAME`. Each name maps to a module with `run(options) -> Result`."""

BENCHMARKS = {
    "shared-prefix": "energylm.benchmarks.shared_prefix",
    "corpus": "energylm.benchmarks.corpus",
    "train": "energylm.benchmarks.train",
    "residual": "energylm.benchmarks.residual",
}
