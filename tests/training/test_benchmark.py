"""The benchmark runs and tells what it must; its bars mean nothing at this size."""

from energylm.benchmarks.harness import Options
from energylm.benchmarks.train import run


def test_quick_run():
    result = run(Options(repeats=1, quick=True))
    assert [bar.bar for bar in result.bars] == [0.90] and result.bars[0].measured > 0.1
    assert set(result.details) == {"tokens/s, engine", "tokens/s, bare loop"}
