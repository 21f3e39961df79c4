"""Judged sets that any scorer can be tried on: `energylm evaluate blimp`."""

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from energylm.config.base import listed
from energylm.config.cloze import Normalise, ScorerConfig
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.verbs.cloze.score import ScoringModel
from energylm.verbs.verb import Positional, Verb

if TYPE_CHECKING:
    from energylm.verbs.cloze.minimal_pairs import MinimalPairsResult

DATA = "data:"  # the folder that ENERGYLM_DATA names


class EvaluateBlimp(Verb, ScorerConfig):
    """Minimal pairs: how often does the grammatical sentence score higher? By paradigm, with intervals.

    Any file of JSON lines with `sentence_good`, `sentence_bad` and `UID` (the paradigm) will do (BLiMP, Warstadt et al.
    2020).
    """

    examples = (
        "energylm evaluate blimp smollm2-135m --limit 100 --output out/blimp",
        "energylm evaluate blimp runs/electric/model my_pairs.jsonl --json pairs.json",
    )
    writes = "optional"

    model: ScoringModel
    sources: Annotated[tuple[str, ...], BeforeValidator(listed), Positional("FILE|FOLDER")] = Field(
        (f"{DATA}blimp",),
        min_length=1,
        description="JSONL files of pairs, or folders of them; data: is the folder that ENERGYLM_DATA names.",
    )
    normalise: Normalise = Field("none", description="Compare scores divided by tokens or words.")
    limit: int | None = Field(None, ge=1, description="Use this many pairs of each paradigm, the first ones.")

    def check(self, job: Job = DEFAULT_JOB) -> str:
        from energylm.bundles.scorer import check_method, kind_of, usable_device
        from energylm.verbs.cloze.minimal_pairs import read_pairs

        groups = read_pairs(self)
        kind = kind_of(self.model)
        check_method(kind, self, name=self.model)
        usable_device(self.device)
        count = sum(map(len, groups.values()))
        return f"would score {count:,} pairs of {len(groups)} paradigms with {self.model} ({kind})"

    def run(self, job: Job = DEFAULT_JOB) -> "MinimalPairsResult":
        from energylm.verbs.cloze.minimal_pairs import judge_pairs

        return judge_pairs(self, job)
