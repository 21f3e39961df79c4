"""Schemathesis over the OpenAPI document: whatever it says may be asked is answered, as it says, and never with a 5xx.

Half of the examples obey the document, half break it; they are drawn the same way every time. The check
`positive_data_acceptance` is left out: whether a prompt fits the model's window is no matter of a schema. Keys are the
matter of `test_serve_tools`.
"""

import pytest

pytest.importorskip("fastapi", reason="the web parts need the extra energylm[web]")
pytest.importorskip("schemathesis", reason="it comes with energylm[dev]")

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from energylm.apps.serve.app import create_app
from energylm.apps.serve.services import load_services
from energylm.apps.serve.verb import Serve, ServeLimits
from tests.apps.conftest import CHAT_TEMPLATE

CHECKS = [
    not_a_server_error,
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def document(model_folder, energy_folder, detector_folder):
    """A server with all its endpoints, small limits and no keys, so that every example gets to what it is about."""
    config = Serve(
        language_model=str(model_folder),
        energy=str(energy_folder),
        detector=str(detector_folder),
        name="tiny",
        proposals=4,
        limits=ServeLimits(max_proposals=8, max_tokens=16, max_choices=4, max_prompts=4, max_texts=8),
    )
    services = load_services(config)
    services.completer.lm.tokenizer.chat_template = CHAT_TEMPLATE
    app = create_app(services, config.limits)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


OPERATIONS = [
    *(("POST", f"/v1/{name}") for name in ("completions", "chat/completions", "score", "rerank", "detect")),
    *(("GET", path) for path in ("/v1/models", "/v1/models/{name}", "/metrics", "/healthz")),
]


def test_the_list_of_operations_is_whole(document):
    operations = {(result.ok().method.upper(), result.ok().path) for result in document.get_all_operations()}
    assert operations == set(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["obeys", "breaks"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_server_keeps_its_word(document, method, path, mode):
    if mode is GenerationMode.NEGATIVE and method == "GET":
        return  # nothing in these that could be wrong
    seen = []

    @settings(
        max_examples=12 if method == "POST" else 2,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=document[path][method].as_strategy(generation_mode=mode))
    def check(case):
        seen.append(case.call_and_validate(checks=CHECKS).status_code)

    check()
    assert seen
    assert mode is GenerationMode.NEGATIVE or method == "GET" or 200 in seen  # teeth: not all were turned away
