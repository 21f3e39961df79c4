"""What `energylm serve` serves, to whom, and how much of it."""

from typing import Self

from pydantic import Field, model_validator

from energylm.config.base import Config


class ServeLimits(Config):
    """What a request may ask for, and how many may wait."""

    max_body_bytes: int = Field(1 << 20, ge=1, description="Largest body; more is refused with 413.")
    max_json_depth: int = Field(16, ge=4, description="Deepest nesting of a body; more is refused with 400.")
    body_seconds: float = Field(30.0, gt=0, description="Time for a body to arrive, else 408.")
    request_seconds: float = Field(120.0, gt=0, description="Time for an answer, waiting included, else 504.")
    max_waiting: int = Field(64, ge=1, description="Requests that wait for the model; more are refused with 429.")
    max_batch_rows: int = Field(
        512, ge=1, description="Continuations that are drawn together; more only let others wait longer."
    )
    gather_seconds: float = Field(
        0.25, ge=0, description="Longest time to wait for those to ask again who have just been answered together."
    )
    max_prompts: int = Field(16, ge=1, description="Prompts of one request.")
    max_choices: int = Field(16, ge=1, description="n of one request.")
    max_proposals: int = Field(1024, ge=2, description="Candidates of one text.")
    max_new_tokens: int = Field(1024, ge=1, description="max_tokens of one request.")
    max_request_tokens: int = Field(
        1 << 20, ge=1, description="Prompts × n × proposals × max_tokens of one request, all together."
    )
    max_texts: int = Field(256, ge=1, description="Texts of one request to score, rerank or judge.")
    max_text_characters: int = Field(100_000, ge=1, description="Of one prompt or text.")


class ServeConfig(Config):
    language_model: str | None = Field(None, description="A model folder, a GGUF file, a known model or a hub name.")
    energy: str | None = Field(None, description="An energy folder; without one the language model is sampled plainly.")
    scorer: str | None = Field(None, description="Model of /v1/score and /v1/rerank; none: the language model.")
    detector: str | None = Field(None, description="A detector folder for /v1/detect.")
    upstream: str | None = Field(
        None, description="Address of an OpenAI-style server that makes the proposals, e.g. http://host:8000/v1."
    )
    upstream_model: str | None = Field(None, description="Model that the upstream is asked for; none: its first.")
    upstream_n: int = Field(16, ge=1, description="Proposals asked of the upstream in one call.")
    name: str | None = Field(None, description="Name under which the model is served; none: the language model's.")
    proposals: int = Field(64, ge=2, description="Candidates of a text where a request does not say.")
    top_k: int | None = Field(None, ge=1, description="Truncation of the proposals where a request does not say.")
    limits: ServeLimits = Field(ServeLimits(), description="Limits of requests and of the queue.")

    @model_validator(mode="after")
    def _has_something_to_serve(self) -> Self:
        if not any((self.language_model, self.upstream, self.scorer, self.detector)):
            raise ValueError("nothing to serve: give a language model, an upstream, a scorer or a detector")
        if self.upstream is not None and self.energy is None:
            raise ValueError("upstream needs an energy to choose among its proposals; give one")
        if self.upstream is not None and not self.upstream.startswith(("http://", "https://")):
            raise ValueError(f"upstream {self.upstream!r} is no address; it begins with http:// or https://")
        if self.energy is not None and self.language_model is None and self.upstream is None:
            raise ValueError("an energy needs a language model, or an upstream, that makes its candidates")
        if self.proposals > self.limits.max_proposals:
            raise ValueError(
                f"proposals {self.proposals} are more than limits.max_proposals, which is the most allowed"
            )
        return self
