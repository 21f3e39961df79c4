"""Scores of n-best lists that outlive the process: a killed `energylm rerank` goes on where it stopped.

OUTPUT/scores/KEY.json     one for each scorer and file of lists

KEY is a hash of the model, of how it scores and of the texts, not of places: other λ, other sets and other references
find the scores again; another model, casing or choice of lists does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from energylm.bundles.reranker import Scored
from energylm.bundles.weights_identity import model_identity
from energylm.config.rerank import NamedScorer
from energylm.data.formats.nbest import NBest
from energylm.errors import DataError
from energylm.files import read_json, sha256_of_json, write_json
from energylm.progress import say

FOLDER, FORMAT_VERSION = "scores", 1


@dataclass
class KeptScores(Scored):
    """What is added is on disk before anything else happens."""

    path: Path = Path()

    @classmethod
    def open(cls, output: Path, scorer: NamedScorer, lists: Sequence[NBest]) -> "KeptScores":
        """The scores that an earlier run left in `output`, or none yet."""
        path = output / FOLDER / f"{_key(scorer, lists)}.json"
        if not path.is_file():
            return cls(path=path)
        try:
            found = read_json(path)
            whole = found.get("sha256") in (None, sha256_of_json(found["scores"]))  # none: kept by an older energylm
        except DataError:
            whole = False
        if not whole or len(found["scores"]) > len(lists):
            say(f"energylm: {path} is damaged: its {len(lists):,} lists are scored again")
            return cls(path=path)
        say(f"energylm: {len(found['scores']):,} of {len(lists):,} lists were scored before ({path})")
        return cls(scores=found["scores"], seconds=found["seconds"], path=path)

    def add(self, scores: Sequence[Sequence[float]], *, seconds: float) -> None:
        super().add(scores, seconds=seconds)
        kept = {"scores": self.scores, "seconds": self.seconds, "sha256": sha256_of_json(self.scores)}
        write_json(self.path, kept)


def _key(scorer: NamedScorer, lists: Sequence[NBest]) -> str:
    texts = [[hypothesis.text for hypothesis in one.hypotheses] for one in lists]
    settings = scorer.model_dump(mode="json", exclude={"model", "device"})
    return sha256_of_json([FORMAT_VERSION, model_identity(scorer.model), settings, texts])[:20]
