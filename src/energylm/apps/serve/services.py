"""The models that `energylm serve` serves, and what its endpoints share.

The models are not for several threads at once: the server calls from one.

`Serving` is what the endpoints share: these models, limits, queue, metrics, and the checks of what is asked.

Relations  `completer` and `upstream` complete; `tools` scores, reranks and judges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.completer import Completer
from energylm.apps.serve.queue import ModelQueue, ServeMetrics
from energylm.apps.serve.upstream import ProposalChooser, Upstream
from energylm.apps.serve.verb import PROPOSALS, Serve, ServeLimits
from energylm.bundles.detector import Detector
from energylm.bundles.language_model import LanguageModel
from energylm.bundles.residual_model import ResidualModel
from energylm.bundles.scorer import CausalScorer, Scorer
from energylm.bundles.text_energy import Energy
from energylm.config.models import LEFT_TO_RIGHT
from energylm.config.sampling import LOOKAHEAD
from energylm.energies.prefix_value import lookahead_energies
from energylm.errors import ModelError

BASE_SUFFIX = ":base"  # of the name under which the language model is served without its energy


@dataclass(frozen=True)
class Services:
    """The models that are served; what is None is not offered."""

    name: str
    completer: Completer | None = None
    chooser: ProposalChooser | None = None
    scorer: Scorer | None = None
    detector: Detector | None = None
    proposals: int = PROPOSALS  # candidates of a text, where a request does not say
    top_k: int | None = None  # truncation of the proposals, likewise
    lookahead: str = LOOKAHEAD  # of the sampler smc; a folder is no matter of requests

    @property
    def energy(self) -> Energy | None:
        """The energy, where it reads texts by itself."""
        joint = None if self.completer is None else self.completer.joint
        energy: Any = self.chooser.energy if self.chooser is not None else joint and joint.energy
        return energy if isinstance(energy, Energy) else None


def load_services(config: Serve) -> Services:
    """Load every model that `config` names."""
    lookahead_energies(config.lookahead)  # an error now, not with the first request
    lm = None if config.language_model is None else LanguageModel.from_pretrained(config.language_model)
    energy = None if config.energy is None else Energy.load(config.energy, beta=config.beta)
    if lm is not None and lm.model.direction != LEFT_TO_RIGHT:
        raise ModelError(f"{lm.name} writes from right to left, but prompts are continued to the right; give another")
    completer = chooser = scorer = None
    if config.upstream is not None and energy is not None:
        chooser = ProposalChooser(energy, lm, told=config.upstream_logprobs)
    elif lm is not None:
        completer = Completer(lm if energy is None else ResidualModel(lm, energy))
    if config.scorer is not None:
        scorer = Scorer.from_pretrained(config.scorer)
    elif lm is not None:
        scorer = Scorer(CausalScorer(lm))
    detector = None if config.detector is None else Detector.from_pretrained(config.detector)
    name = config.name or config.upstream_model or ("energylm" if lm is None else lm.name)
    defaults = config.proposals, config.top_k, config.lookahead
    return Services(name, completer, chooser, scorer, detector, *defaults)


@dataclass(frozen=True)
class Serving:
    services: Services
    limits: ServeLimits
    queue: ModelQueue
    metrics: ServeMetrics
    upstream: Upstream | None

    @property
    def model_names(self) -> dict[str, str]:
        """name → what it is, in words."""
        services, names = self.services, {}
        if services.chooser is not None:
            names[services.name] = "proposals of another server, chosen among by an energy"
        elif services.completer is not None and services.completer.joint is not None:
            names[services.name] = "a language model under an energy, sampled jointly"
            names[services.name + BASE_SUFFIX] = "the language model alone"
        elif services.completer is not None:
            names[services.name] = "a language model"
        return names

    async def ask(self, kind: str, payload: Any, *, rows: int, request: Request, response: Response | None) -> Any:
        """The models' answer; how long it took goes into a header of `response`."""
        queued = await self.queue.run(kind, payload, rows=rows, has_left=request.is_disconnected)
        if response is not None:
            response.headers["server-timing"] = (
                f"queue;dur={1000 * queued.queue_seconds:.2f}, model;dur={1000 * queued.model_seconds:.2f}"
            )
        return queued.answer

    def check_at_most(self, value: int, most: int, *, param: str) -> None:
        if value > most:
            raise RefusedRequest(
                400, f"{param}: {value:,} is more than the {most:,} that this server allows", param=param
            )

    def check_texts(self, texts: Sequence[str], *, param: str) -> None:
        self.check_at_most(len(texts), self.limits.max_texts, param=param)
        for number, text in enumerate(texts):
            if len(text) > self.limits.max_text_characters:
                where = f"{param}.{number}"
                raise RefusedRequest(
                    400,
                    f"{where}: {len(text):,} characters are more than the {self.limits.max_text_characters:,} that are "
                    "allowed here",
                    param=where,
                )

    def lacking(self, what: str, option: str) -> RefusedRequest:
        """What a client is told that asks for a model that is not there."""
        return RefusedRequest(404, f"this server has no {what}; it is started with {option}", code="not_served")
