"""Scores of n-best lists that outlive the process: a killed `energylm rerank` goes on where it stopped.

OUTPUT/scores/KEY.json     one for each scorer and file of lists

KEY is a hash of the model, of how it scores and of the texts, not of places: other λ, other sets and other references
find the scores again; another model, casing or choice of lists does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from energylm.bundles.known_models import locate
from energylm.bundles.model_folder import MANIFEST
from energylm.bundles.reranker import Scored
from energylm.bundles.weights_identity import weights_sha256
from energylm.config.rerank import NamedScorer
from energylm.data.formats.nbest import NBest
from energylm.errors import DataError
from energylm.files import read_json, sha256_of_file, sha256_of_json, write_json
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
        found = read_json(path)
        if len(found["scores"]) > len(lists):
            raise DataError(f"{path} has scores of {len(found['scores']):,} lists, not {len(lists):,}; delete it")
        say(f"energylm: {len(found['scores']):,} of {len(lists):,} lists were scored before ({path})")
        return cls(scores=found["scores"], seconds=found["seconds"], path=path)

    def add(self, scores: Sequence[Sequence[float]], *, seconds: float) -> None:
        super().add(scores, seconds=seconds)
        write_json(self.path, {"scores": self.scores, "seconds": self.seconds})


def _key(scorer: NamedScorer, lists: Sequence[NBest]) -> str:
    texts = [[hypothesis.text for hypothesis in one.hypotheses] for one in lists]
    settings = scorer.model_dump(mode="json", exclude={"model"})
    return sha256_of_json([FORMAT_VERSION, _model_identity(scorer.model), settings, texts])[:20]


def _model_identity(model: str) -> str:
    """Of a folder made here its manifest, which names the weights and how texts are read; else the weights alone."""
    location = locate(model)
    if isinstance(location, Path) and (location / MANIFEST).is_file():
        return sha256_of_file(location / MANIFEST)
    return weights_sha256(model)
