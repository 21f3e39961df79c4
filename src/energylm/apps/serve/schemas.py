"""What requests and answers of `energylm serve` look like: the OpenAPI document is made of this.

Types are strict (the string "1" is no number) and unknown parameters are refused, so that a misspelt one is not
ignored in silence. Of OpenAI's parameters those that are not offered are known and may have the value that changes
nothing. Bounds here are the outermost; `verb.ServeLimits` may be narrower.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from energylm.bundles.detector import Verdict
from energylm.config.cloze import Normalise, Per
from energylm.config.sampling import JointSampling
from energylm.samplers.resampling import Weights

INT64 = 1 << 63
LOWEST_TEMPERATURE = 0.01  # but 0, which is greedy: below, logits overflow

Count = Annotated[int, Field(ge=1, le=100_000)]
TokenId = Annotated[int, Field(ge=0, lt=INT64)]
BoundedText = Annotated[str, Field(max_length=1 << 20)]
LikeliestTokens = Annotated[int, Field(ge=0, le=5)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]
Nothing = Literal[None]
Sampler = Literal["resample", "rejection", "quasi-rejection", "independence", "suffix", "smc"]


class RequestBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class ResponseBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetails(ResponseBody):
    message: str = Field(description="What was wrong, in one line.")
    type: str
    param: str | None
    code: str | None


class ErrorResponse(ResponseBody):
    error: ErrorDetails


def _sampling(name: str) -> Any:
    """An option of `config.sampling.JointSampling`, in its words; None: its default."""
    return Field(None, description=JointSampling.model_fields[name].description)


class EnergyOptions(RequestBody):
    """How the text is chosen among candidates; energylm's extension."""

    proposals: Count | None = Field(None, description="Candidates of each text; 1: the language model alone.")
    top_k: Count | None = Field(None, description="Candidates are drawn from the k likeliest tokens.")
    weights: Weights | None = Field(
        None,
        description="paper: exp(−E) over the proposal; corrected: also divides truncation and temperature out again. "
        "With an upstream, corrected aims at this server's own language model under the energy.",
    )
    sampler: Sampler | None = _sampling("sampler")
    bound: Annotated[float, Field(ge=-1e9, le=1e9)] | None = _sampling("bound")
    distance: Annotated[float, Field(gt=0, lt=1)] | None = _sampling("distance")
    block_tokens: Count | None = _sampling("block_tokens")
    moves: Count | None = _sampling("moves")
    power: Annotated[float, Field(gt=0, le=1e3)] | None = _sampling("power")
    details: bool | None = Field(None, description="Tell all candidates with energies and weights.")


class StreamOptions(RequestBody):
    include_usage: bool | None = Field(None, description="Send a last chunk with the usage.")
    include_obfuscation: bool | None = Field(None, description="Known, without effect.")


class SamplingRequest(RequestBody):
    """What completions and chats have in common."""

    model: str | None = Field(None, max_length=200, description="A name of /v1/models; none: the first.")
    n: Count | None = Field(None, description="Independent texts of each prompt; 1 by default.")
    temperature: float | None = Field(
        None, ge=0, le=2, description="1 by default; 0 is greedy, other values are at least 0.01."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="Candidates are drawn from this share; 1 by default.")
    top_k: Count | None = Field(None, description="Candidates are drawn from the k likeliest tokens; all by default.")
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = Field(
        None, description="The text ends where one of these would begin."
    )
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = Field(
        None, description="The same seed gives the same text; drawn and told where none is given."
    )
    stream: bool | None = Field(None, description="Send the chosen text piece by piece as server-sent events.")
    stream_options: StreamOptions | None = None
    energy: EnergyOptions | None = None
    user: str | None = Field(None, max_length=1000, description="Known, without effect.")
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = Field(None, description="Not offered.")
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = Field(None, description="Not offered.")
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = Field(None, description="Not offered.")


class CompletionRequest(SamplingRequest):
    prompt: (
        BoundedText
        | Annotated[list[BoundedText], Field(min_length=1, max_length=2048)]
        | Annotated[list[TokenId], Field(min_length=1, max_length=1 << 18)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=2048)]
    ) = Field("", description="A text to continue, token ids, or a list of either.")
    max_tokens: Count | None = Field(None, description="Longest text in tokens; 16 by default.")
    logprobs: LikeliestTokens | None = Field(
        None, description="Tell the language model's log-probability of each token, and of so many likeliest ones."
    )
    suffix: Nothing = Field(None, description="Not offered.")
    best_of: Literal[1] | None = Field(None, description="Not offered; an energy chooses better.")
    echo: Literal[False] | None = Field(None, description="Not offered.")


class TextPart(RequestBody):
    type: Literal["text"]
    text: BoundedText


class ChatMessage(RequestBody):
    role: Literal["system", "user", "assistant"]
    content: BoundedText | Annotated[list[TextPart], Field(min_length=1, max_length=2048)]


class PlainFormat(RequestBody):
    type: Literal["text"]


class ChatRequest(SamplingRequest):
    messages: list[ChatMessage] = Field(
        min_length=1, max_length=2048, description="The chat so far; the model's own chat template reads it."
    )
    max_completion_tokens: Count | None = Field(None, description="Longest answer in tokens; 256 by default.")
    max_tokens: Count | None = Field(None, description="The older name of max_completion_tokens.")
    logprobs: bool | None = Field(None, description="Tell the language model's log-probability of each token.")
    top_logprobs: LikeliestTokens | None = Field(None, description="And of so many likeliest ones.")
    response_format: PlainFormat | None = Field(None, description="Text; others are not offered.")
    tools: Annotated[list[Any], Field(max_length=0)] | None = Field(None, description="Not offered.")
    tool_choice: Literal["none", "auto"] | None = Field(None, description="Without effect: there are no tools.")
    store: Literal[False] | None = Field(None, description="Nothing is kept.")


class LogProbs(ResponseBody):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]

    def part(self, start: int, stop: int) -> "LogProbs":
        """Those of some tokens."""
        return LogProbs(**{name: values[start:stop] for name, values in self})


class SamplerFacts(ResponseBody):
    """How far to trust the sampler, as `energylm generate` tells it."""

    sampler: Sampler
    acceptance: float | None = Field(description="Part of the proposals; None where nothing is accepted or refused.")
    distance: float | None = Field(description="From the joint model's law in total variation, at most; None: unknown.")
    log_partition: float | None = Field(description="log Z, where the sampler estimates it.")
    is_trusted: bool | None = Field(description="None where nothing can be said.")
    verdict: str


class ChoiceFacts(ResponseBody):
    """How this text was chosen."""

    energy: float | None = Field(description="None where the energy forbids the text.")
    log_weight: float | None
    ess: float | None = Field(
        description="How many independent texts the candidates are worth; None where chains do not tell."
    )
    largest_share: float
    warning: str | None
    report: SamplerFacts | None = Field(None, description="Of samplers other than resample.")


class Usage(ResponseBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CandidateFacts(ResponseBody):
    text: str
    energy: float | None = Field(description="None where the energy forbids the text.")
    log_weight: float | None


class CompletionFacts(ResponseBody):
    seed: int = Field(description="Ask with this seed again for the same texts.")
    warning: str | None = Field(None, description="What is doubtful about the first text's choice.")
    candidates: list[CandidateFacts] | None = Field(None, description="Of the first text, where details are asked for.")
    ess: float | None = None
    base: list[str] | None = Field(
        None, description="The language model's own text beside each chosen one; none where it draws none by itself."
    )


class AnswerChoice(ResponseBody):
    index: int
    finish_reason: Literal["stop", "length"] | None = Field(description="None while a stream goes on.")
    energylm: ChoiceFacts | None = None


class CompletionChoice(AnswerChoice):
    text: str
    logprobs: LogProbs | None


class SamplingResponse(ResponseBody):
    """What the answers to completions and chats have in common, whole or in chunks."""

    id: str
    created: int
    model: str
    usage: Usage | None = None
    energylm: CompletionFacts | None = None


class CompletionResponse(SamplingResponse):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class LikelyToken(ResponseBody):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogProbs(ResponseBody):
    content: list[ChatToken]


class ChatAnswer(ResponseBody):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: Nothing = None


class ChatChoice(AnswerChoice):
    message: ChatAnswer
    logprobs: ChatLogProbs | None


class ChatResponse(SamplingResponse):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class ChatDelta(ResponseBody):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(AnswerChoice):
    delta: ChatDelta
    logprobs: ChatLogProbs | None


class ChatChunk(SamplingResponse):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class ScoreRequest(RequestBody):
    texts: list[BoundedText] = Field(min_length=1, max_length=100_000)
    normalise: Normalise = Field("none", description="Divide by tokens or words.")
    per: Per = Field("sentence", description="The finest scores that are told.")
    energy: bool = Field(False, description="Tell each text's energy too, where the server has one.")


class TextScoreFacts(ResponseBody):
    score: float = Field(description="Natural logarithm, higher = better.")
    tokens: int
    words: int
    windows: int | None = Field(None, description="More than one where the text is longer than the model.")
    energy: float | None = Field(None, description="Lower = likelier.")
    word_scores: list[tuple[str, float]] | None = None
    token_scores: list[tuple[str, float]] | None = None


class ScoreResponse(ResponseBody):
    model: str
    convention: str
    scores: list[TextScoreFacts]


class HypothesisFacts(RequestBody):
    text: BoundedText
    score: float = Field(0.0, ge=-1e9, le=1e9, description="The recogniser's own, higher = better.")


class RerankRequest(RequestBody):
    hypotheses: list[HypothesisFacts] = Field(min_length=1, max_length=100_000)
    weight: float | None = Field(None, ge=-1e3, le=1e3, description="λ of the model's score; 0.5 by default.")
    context: BoundedText = Field(
        "", description="What was heard before: read first and not counted, by models that score tokens."
    )


class RankedFacts(ResponseBody):
    index: int = Field(description="Its index in the request, from 0.")
    text: str
    score: float
    model_score: float | None = Field(description="None for an empty hypothesis.")
    total: float | None = Field(description="score + weight · model_score.")


class RerankResponse(ResponseBody):
    model: str
    convention: str
    weight: float
    results: list[RankedFacts] = Field(description="The best first.")


class DetectRequest(RequestBody):
    texts: list[BoundedText] = Field(min_length=1, max_length=100_000)


class BlockFacts(ResponseBody):
    start: int = Field(description="First character.")
    end: int
    score: float = Field(description="Higher = machine.")


class DetectionFacts(ResponseBody):
    verdict: Verdict
    reason: str
    probability: float | None = Field(description="Of machine, if both were equally likely beforehand.")
    score: float | None
    threshold: float | None
    log_odds: float | None
    tokens_used: int
    tokens: int
    blocks: list[BlockFacts]
    calibration: dict[str, Any] | None = Field(description="What probabilities and thresholds rest on; none: nothing.")


class DetectResponse(ResponseBody):
    results: list[DetectionFacts]


class ModelFacts(ResponseBody):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    description: str


class ModelsResponse(ResponseBody):
    object: Literal["list"] = "list"
    data: list[ModelFacts]


class Health(ResponseBody):
    status: Literal["ok"] = "ok"
    model: str
    waiting: int = Field(description="Requests that wait for the models.")
    running: int = Field(description="Requests that the models are at.")
