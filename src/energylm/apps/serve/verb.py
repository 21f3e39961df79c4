"""`energylm serve`: what is served, to whom, how much of it; load, listen, answer, and leave in order.

Without keys the server listens on this machine only, and answers only who addresses it by a name of this machine; to
open it to others without keys must be said openly. On SIGTERM or Ctrl-C it takes no new requests, answers those that it
has, and leaves with exit code 0.
"""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from energylm.apps import needs_extra
from energylm.config.base import Config
from energylm.config.sampling import Lookahead
from energylm.errors import ConfigError
from energylm.jobs.job import DEFAULT_JOB, Job
from energylm.records import LOCAL, Record
from energylm.verbs.verb import Positional, Verb

UPSTREAM_KEY = "ENERGYLM_UPSTREAM_KEY"
PROPOSALS = 64
RAW: Final = "raw"
UpstreamLogProbs = Literal["raw", "processed"]
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


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
    max_tokens: int = Field(1024, ge=1, description="max_tokens of one request.")
    max_request_tokens: int = Field(
        1 << 20,
        ge=1,
        description="Prompts × n × proposals × max_tokens of one request, all together; with sampler suffix × (moves + "
        "1) as well.",
    )
    max_texts: int = Field(256, ge=1, description="Texts of one request to score, rerank or judge.")
    max_text_characters: int = Field(100_000, ge=1, description="Of one prompt or text.")


@dataclass(frozen=True)
class Served(Record):
    """A server that has been stopped, every request answered."""

    address: str


@dataclass(frozen=True)
class NewKey(Record):
    """A key that was made; itself it is shown once and kept nowhere."""

    file: Path
    note: str
    key: str = field(default="", repr=False, metadata=LOCAL)


class Serve(Verb):
    """Serve a language model under an energy to OpenAI-style clients; scores, reranking, detection and a page besides.

    Keys are read from --keys and from ENERGYLM_API_KEYS (comma-separated); without any, only this machine may ask.
    ENERGYLM_UPSTREAM_KEY is the key for the upstream.
    """

    examples = (
        "energylm serve runs/tiny/model --energy runs/energy/model",
        'energylm serve smollm2-135m --energy "similarity:a storm at sea" --beta 20',
        "energylm serve --add-key laboratory --keys keys.txt",
        "energylm serve smollm2-135m --energy runs/bit/model --host 0.0.0.0 --keys keys.txt",
        "energylm serve --upstream http://127.0.0.1:9000/v1 --energy runs/text/model --set limits.max_waiting=128",
    )

    language_model: Annotated[str | None, Positional("LM")] = Field(
        None, description="A model folder, a GGUF file, a known model or a hub name."
    )
    energy: str | None = Field(
        None,
        description="An energy folder, a score as KIND:TEXT, or a YAML file of several; without one the language model "
        "is sampled plainly.",
    )
    beta: float | None = Field(None, description="How strongly the energy weighs; none: the energy's own.")
    scorer: str | None = Field(None, description="Model of /v1/score and /v1/rerank; none: the language model.")
    detector: str | None = Field(None, description="A detector folder for /v1/detect.")
    upstream: str | None = Field(
        None, description="Address of an OpenAI-style server that makes the proposals, e.g. http://host:8000/v1."
    )
    upstream_model: str | None = Field(None, description="Model that the upstream is asked for; none: its first.")
    upstream_logprobs: UpstreamLogProbs = Field(
        RAW,
        description="What the upstream's log-probabilities are: raw, before temperature and truncation (energylm, vLLM "
        "by default), or processed, of tokens as they are drawn (vLLM with --logprobs-mode processed_logprobs).",
    )
    upstream_n: int = Field(16, ge=1, description="Proposals asked of the upstream in one call.")
    name: str | None = Field(None, description="Name under which the model is served; none: the language model's.")
    proposals: int = Field(PROPOSALS, ge=2, description="Candidates of a text where a request does not say.")
    top_k: int | None = Field(None, ge=1, description="Truncation of the proposals where a request does not say.")
    lookahead: str = Lookahead
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: any free one.")
    keys: Path | None = Field(None, description="File of API keys' digests, made with --add-key.")
    add_key: str | None = Field(
        None, description="Make a key, print it once, add its digest with this note to --keys, and leave."
    )
    insecure_no_keys: bool = Field(False, description="Let anyone who can reach the address ask.")
    limits: ServeLimits = Field(ServeLimits(), description="Limits of requests and of the queue.")

    @model_validator(mode="after")
    def _has_something_to_serve(self) -> Self:
        if self.add_key is not None:
            if self.keys is None:
                raise ValueError("add_key needs `keys`, the file that the key's digest goes into")
            return self
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

    def check(self, job: Job = DEFAULT_JOB) -> str:
        """Find the models without loading them; what would be served, in words."""
        from energylm.bundles.known_models import locate, locate_energy

        if self.add_key is not None:
            return f"would make a key and add its digest to {self.keys}"
        named = {
            "the language model": self.language_model,
            "the scorer": self.scorer,
            "the detector": self.detector,
        }
        parts = [f"{what} {locate(name)}" for what, name in named.items() if name is not None]
        if self.energy is not None:
            parts.append(f"the energy {locate_energy(self.energy)}")
        if self.upstream is not None:
            parts.append(f"proposals of {self.upstream}")
        return f"would serve {', '.join(parts)} at {self.host} port {self.port}"

    def run(self, job: Job = DEFAULT_JOB) -> Served | NewKey:
        """Serve until told to stop; or make a key."""
        needs_extra("fastapi", "uvicorn", "httpx", "prometheus_client", "jinja2")
        if self.add_key is None:
            return _serve(self)
        from energylm.apps.security import add_key

        assert self.keys is not None
        return NewKey(self.keys, self.add_key, add_key(self.keys, note=self.add_key))

    def shown(self, result: Served | NewKey) -> str:
        return f"{result.key}\n" if isinstance(result, NewKey) else ""


def _serve(wanted: Serve) -> Served:
    from energylm.apps import hosting
    from energylm.apps.security import ApiKeys
    from energylm.apps.serve.app import create_app
    from energylm.apps.serve.services import load_services
    from energylm.apps.serve.upstream import Upstream
    from energylm.progress import say

    keys = ApiKeys.load(wanted.keys)
    check_binding(wanted.host, has_keys=bool(keys), insecure=wanted.insecure_no_keys)
    listening = hosting.listen(wanted.host, wanted.port)
    upstream = None
    if wanted.upstream is not None:
        upstream = Upstream(
            wanted.upstream,
            model=wanted.upstream_model,
            key=os.environ.pop(UPSTREAM_KEY, "") or None,
            n=wanted.upstream_n,
            seconds=wanted.limits.request_seconds,
            at_once=wanted.limits.max_waiting,
        )
    is_open = bool(keys) or wanted.insecure_no_keys
    hosts = None if is_open else (*LOOPBACK_NAMES, wanted.host)
    app = create_app(load_services(wanted), wanted.limits, keys, upstream=upstream, hosts=hosts)
    address = hosting.address_of(listening)
    say(f"energylm: serving at {address}{'' if keys else ', without keys'}")
    hosting.run(app, listening)
    say("energylm: stopped, every request answered")
    return Served(address)


def check_binding(host: str, *, has_keys: bool, insecure: bool) -> None:
    """An error where strangers could reach a server that has no keys."""
    if has_keys or insecure or is_loopback(host):
        return
    raise ConfigError(
        f"--host {host} is open to other machines but there are no keys: give --keys FILE (made with --add-key), or "
        "say --insecure-no-keys"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
