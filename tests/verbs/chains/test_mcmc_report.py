"""The report on chains: every number and trace is there."""

import json
from pathlib import Path

import torch

from energylm.estimators.mixing import Trace, diagnose
from energylm.report.report import write_report
from energylm.verbs.chains.mcmc_report import MCMCRun, TextSample, chain_curves, chains_sections, numbers_table


def test_report_holds_verdict_numbers_traces_and_texts(tmp_path: Path) -> None:
    energy_BCN = torch.arange(2 * 3 * 8, dtype=torch.float64).sin().view(2, 3, 8)
    counts = torch.full((2, 3, 8), 4)
    trace = Trace(energy_BCN, counts, counts // 2, counts // 4, torch.ones(8), burn_in=2, exact=True, dispersed=True)
    diagnosis = diagnose(trace)
    ended = [(0, 0, 1.5, "a text"), (0, 1, 0.5, "a better text"), (1, 2, 3.0, "another")]
    samples = [TextSample(text, chain, 7, energy, words, []) for text, chain, energy, words in ended]
    result = MCMCRun(samples, diagnosis, chain_curves(trace), texts=2, chains=3, burn_in=2)
    sections = chains_sections(result, trace, energy="local", sampler="mh")
    page = write_report(tmp_path, title="Chains", sections=sections)
    assert diagnosis.verdict[1:] in page.read_text(encoding="utf-8")
    results = json.loads((tmp_path / "results.json").read_text())["sections"]
    traces = results["energies-of-the-first-text"]["plot"]["series"]
    assert [line["y"] for line in traces] == energy_BCN[0].tolist()
    rates = {line["name"]: line["y"] for line in results["proposals-by-epoch"]["plot"]["series"]}
    assert rates == {"accepted": [0.5] * 8, "novel": [0.25] * 8}
    texts = results["texts-of-lowest-energy"]["samples"]
    assert [(text["label"], text["continuation"]) for text in texts] == [
        ("text 1, chain 1, energy 0.50", "a better text"),
        ("text 2, chain 2, energy 3.00", "another"),
    ]
    numbers = dict(numbers_table(diagnosis, energy="raw", sampler="mh", kept=6).rows)
    assert numbers["accepted proposals"] == 0.5 and numbers["lowest energy"] == diagnosis.lowest_energy
