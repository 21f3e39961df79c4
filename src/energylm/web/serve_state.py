"""What the endpoints of `energylm serve` share: models, limits, queue, metrics, and the checks of what is asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from energylm.config.serve import ServeLimits
from energylm.pipelines.serve import Services
from energylm.web.security import RefusedRequest
from energylm.web.serve_metrics import ServeMetrics
from energylm.web.serve_queue import Answer, ModelQueue
from energylm.web.serve_upstream import Upstream

BASE_SUFFIX = ":base"  # of the name under which the language model is served without its energy


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
        answer: Answer = await self.queue.run(kind, payload, rows=rows, has_left=request.is_disconnected)
        if response is not None:
            response.headers["server-timing"] = (
                f"queue;dur={1000 * answer.queue_seconds:.2f}, model;dur={1000 * answer.model_seconds:.2f}"
            )
        return answer.value

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
