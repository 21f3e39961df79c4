"""`POST /v1/score`, `/v1/rerank` and `/v1/detect`: what scorers and detectors say of texts."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from energylm.apps.security import RefusedRequest
from energylm.apps.serve.schemas import (
    BlockFacts,
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
from energylm.apps.serve.services import RerankTask, ScoreTask, Serving
from energylm.data.formats.nbest import Hypothesis

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
        task = ScoreTask(tuple(body.texts), with_energy=body.energy)
        found = await serving.ask("score", task, rows=len(body.texts), request=request, response=response)
        energies = found.energies or [None] * len(found.scores)
        return ScoreResponse(
            model=services.scorer.name,
            convention=services.scorer.convention,
            scores=[
                TextScoreFacts(
                    **_without_text(one.shown(per=body.per, normalise=body.normalise).to_json()), energy=energy
                )
                for one, energy in zip(found.scores, energies, strict=True)
            ],
        )

    @router.post("/v1/rerank", response_model=RerankResponse, summary="Rerank an n-best list")
    async def rerank(body: RerankRequest, request: Request, response: Response) -> Any:
        if services.scorer is None:
            raise serving.lacking("scorer", "`energylm serve LM` or --scorer")
        serving.check_texts([one.text for one in body.hypotheses], param="hypotheses")
        weight = DEFAULT_WEIGHT if body.weight is None else body.weight
        task = RerankTask(tuple(Hypothesis(one.text, one.score) for one in body.hypotheses), weight)
        ranked = await serving.ask("rerank", task, rows=len(body.hypotheses), request=request, response=response)
        return RerankResponse(
            model=services.scorer.name,
            convention=services.scorer.convention,
            weight=weight,
            results=[
                RankedFacts(
                    index=one.index, text=one.text, score=one.score, model_score=one.model_score, total=one.total
                )
                for one in ranked
            ],
        )

    @router.post("/v1/detect", response_model=DetectResponse, summary="Human or machine")
    async def detect(body: DetectRequest, request: Request, response: Response) -> Any:
        if services.detector is None:
            raise serving.lacking("detector", "--detector")
        serving.check_texts(body.texts, param="texts")
        found = await serving.ask("detect", body.texts, rows=len(body.texts), request=request, response=response)
        calibration = services.detector.calibration
        facts = None if calibration is None else calibration.to_json()
        return DetectResponse(
            results=[
                DetectionFacts(
                    verdict=one.verdict,
                    reason=one.reason,
                    probability=one.probability,
                    score=one.score,
                    threshold=one.threshold,
                    log_odds=one.log_odds,
                    tokens_used=one.tokens_used,
                    tokens=one.tokens,
                    blocks=[BlockFacts(start=block.start, end=block.end, score=block.score) for block in one.blocks],
                    calibration=facts,
                )
                for one in found
            ]
        )

    return router


def _without_text(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "text"}
