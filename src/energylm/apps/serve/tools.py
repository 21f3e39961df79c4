"""`POST /v1/score`, `/v1/rerank` and `/v1/detect`: what scorers and detectors say of texts."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.completer import finite
from energylm.apps.serve.schemas import (
    DetectionFacts,
    DetectRequest,
    DetectResponse,
    RankedFacts,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    TextScoreFacts,
)
from energylm.apps.serve.services import Services, Serving
from energylm.bundles.reranker import Reranker
from energylm.bundles.scorer import Scorer
from energylm.bundles.scorer_text import TextScore
from energylm.data.nbest import Hypothesis, NBest
from energylm.estimators.weight_tuning import ListScores

DEFAULT_WEIGHT = 0.5


def tools_router(serving: Serving) -> APIRouter:
    router, services = APIRouter(), serving.services

    @router.post("/v1/score", response_model=ScoreResponse, response_model_exclude_none=True, summary="Score texts")
    async def score(body: ScoreRequest, request: Request, response: Response) -> Any:
        if services.scorer is None:
            raise serving.lacking("scorer", "`energylm serve LM` or --scorer")
        if body.energy and services.energy is None:
            raise serving.lacking("energy that reads texts", "--energy")
        serving.check_texts(body.texts, param="texts")
        for number, text in enumerate(body.texts):
            if not text.strip():
                where = f"texts.{number}"
                raise RefusedRequest(400, f"{where} is empty, so it has no score; leave it out", param=where)
        return await serving.ask("score", body, rows=len(body.texts), request=request, response=response)

    @router.post("/v1/rerank", response_model=RerankResponse, summary="Rerank an n-best list")
    async def rerank(body: RerankRequest, request: Request, response: Response) -> Any:
        if services.scorer is None:
            raise serving.lacking("scorer", "`energylm serve LM` or --scorer")
        serving.check_texts([hypothesis.text for hypothesis in body.hypotheses], param="hypotheses")
        return await serving.ask("rerank", body, rows=len(body.hypotheses), request=request, response=response)

    @router.post("/v1/detect", response_model=DetectResponse, summary="Human or machine")
    async def detect(body: DetectRequest, request: Request, response: Response) -> Any:
        if services.detector is None:
            raise serving.lacking("detector", "--detector")
        serving.check_texts(body.texts, param="texts")
        return await serving.ask("detect", body, rows=len(body.texts), request=request, response=response)

    return router


def score_texts(services: Services, bodies: Sequence[ScoreRequest]) -> list[ScoreResponse]:
    scorer = services.scorer
    assert scorer is not None
    scores = iter(scorer.token_scores([text for body in bodies for text in body.texts]))
    judged = [text for body in bodies if body.energy for text in body.texts]
    energies = iter([] if services.energy is None or not judged else map(finite, services.energy.text_energies(judged)))
    return [
        ScoreResponse(
            model=scorer.name,
            convention=scorer.convention,
            scores=[
                _score_facts(score, body, next(energies, None) if body.energy else None)
                for score in islice(scores, len(body.texts))
            ],
        )
        for body in bodies
    ]


def _score_facts(score: TextScore, body: ScoreRequest, energy: float | None) -> TextScoreFacts:
    shown = score.shown(per=body.per, normalise=body.normalise).to_json()
    return TextScoreFacts(**{name: value for name, value in shown.items() if name != "text"}, energy=energy)


def rerank_lists(services: Services, bodies: Sequence[RerankRequest]) -> list[RerankResponse]:
    assert services.scorer is not None
    lists = [
        NBest(
            f"list {number}",
            None,
            tuple(Hypothesis(given.text, given.score) for given in body.hypotheses),
            context=body.context,
        )
        for number, body in enumerate(bodies, start=1)
    ]
    words = max(len(body.context.split()) for body in bodies)
    scored = Reranker(services.scorer, context=words).score_lists(lists)
    return [
        _reranked(services.scorer, body, of_list, _row(scored, row))
        for row, (body, of_list) in enumerate(zip(bodies, lists, strict=True))
    ]


def _reranked(scorer: Scorer, body: RerankRequest, of_list: NBest, scores: ListScores) -> RerankResponse:
    weight = DEFAULT_WEIGHT if body.weight is None else body.weight
    (reranked,) = Reranker(scorer, weight=weight).rerank_lists([of_list], scores=scores)
    results = []
    for index, total in zip(reranked.order, reranked.totals, strict=True):
        has_text = math.isfinite(total)  # an empty hypothesis has neither score nor total
        results.append(
            RankedFacts(
                index=index,
                text=of_list.hypotheses[index].text,
                score=body.hypotheses[index].score,
                model_score=float(scores.scores_SUH[0, 0, index]) if has_text else None,
                total=total if has_text else None,
            )
        )
    return RerankResponse(model=scorer.name, convention=scorer.convention, weight=weight, results=results)


def detect_texts(services: Services, bodies: Sequence[DetectRequest]) -> list[DetectResponse]:
    assert services.detector is not None
    detections = iter(services.detector.predict([text for body in bodies for text in body.texts]))
    calibration = services.detector.calibration
    facts = None if calibration is None else calibration.to_json()
    return [
        DetectResponse(
            results=[
                DetectionFacts(**detection.to_json(), calibration=facts)
                for detection in islice(detections, len(body.texts))
            ]
        )
        for body in bodies
    ]


def _row(scores: ListScores, row: int) -> ListScores:
    """What was scored of one list."""
    own = slice(row, row + 1)
    return ListScores(scores.base_UH[own], scores.scores_SUH[:, own], scores.length_UH[own])
