"""Requests of every documented operation, and of none, against a live bookie: it always answers as its own OpenAPI
document says (status, content type, schema), never with 500, never late; what the document forbids is refused; and it
is sound afterwards."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.http_answers import Document, HttpAnswer, ask
from tests.support.ledgers_of_bookie import some_ledgers
from tests.support.live_bookie import live_bookie

PATIENCE_S = 20.0
EXAMPLES = 12
"""Random requests of each operation."""
WILD = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
NUMBERS = st.integers(-(2**65), 2**65).map(str) | st.sampled_from(["0", "1", "-1", "+1", "1e3", "0x10", "9" * 400])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WILD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WILD, inner, max_size=3),
    max_leaves=6,
)
HARMLESS = {"gcWaitTime": "900000", "compactionRateByBytes": 5_000_000, "majorCompactionThreshold": 0.7}
"""What `server_config` may be set to while other tests go on with the same bookie."""

CONTENT_TYPES = st.sampled_from(["application/json", "text/plain", "application/xml; charset=utf-16", "nonsense", ""])


class Request(NamedTuple):
    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = {}


def text_of(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    choices = st.sampled_from(schema["enum"]) if "enum" in schema else st.nothing()
    usual = {"integer": st.integers(0, 30).map(str), "boolean": st.sampled_from(["true", "false"])}
    return choices | usual.get(schema["type"], WILD) | NUMBERS | WILD


def member_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return (st.booleans() if schema.get("type") == "boolean" else WILD) | JSON


def body_of(document: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[bytes | None]:
    if "$ref" in schema:
        named = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        known = st.fixed_dictionaries({}, optional={k: member_of(v) for k, v in named["properties"].items()})
    else:
        known = st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in HARMLESS.items()})
    values = known | JSON
    return st.none() | values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)


@st.composite
def requests(draw: st.DrawFn, document: Document, of: tuple[str, str, dict[str, Any]]) -> Request:
    """A request of one operation: parameters right, wrong, missing, repeated or unknown; any body; any content type."""
    method, path, operation = of
    query = [
        (each["name"], draw(text_of(each["schema"]))) for each in operation["parameters"] if draw(st.integers(0, 3))
    ]
    if not draw(st.integers(0, 4)):
        query.append((draw(WILD), draw(WILD)))
    if query and not draw(st.integers(0, 5)):
        query.append((query[0][0], draw(WILD)))
    body = None
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        body = draw(body_of(document.content, content["schema"]))
    elif not draw(st.integers(0, 5)):
        body = draw(st.binary(max_size=60))
    headers = {"Content-Type": draw(CONTENT_TYPES)} if body is not None and draw(st.booleans()) else {}
    return Request(method, path, query, body, headers)


class Bookie:
    """A live bookie on a loop of its own, some ledgers in it, and its own description."""

    def __init__(self, runner: asyncio.Runner, port: int) -> None:
        self.runner = runner
        self.port = port
        self.document = Document(runner.run(ask(port, "/openapi.json")).json)

    def ask(self, request: Request) -> HttpAnswer:
        """In time, and without a 500."""
        began = time.monotonic()
        answer = self.runner.run(
            ask(self.port, request.path, request.method, request.body, request.query, **request.headers)
        )
        assert time.monotonic() - began < PATIENCE_S
        assert answer.status != 500, f"{request}: {answer}"
        return answer


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookie]:
    with asyncio.Runner() as runner:
        context = live_bookie(tmp_path_factory.mktemp("live"))
        bookie = runner.run(context.__aenter__())
        try:
            runner.run(some_ledgers(bookie))
            yield Bookie(runner, bookie.config.http.server_port)
        finally:
            runner.run(context.__aexit__(None, None, None))


def test_random_requests_of_every_operation(live: Bookie) -> None:
    for of in live.document.operations:

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(requests(live.document, of))
        def fire(request: Request) -> None:
            live.document.judge(request.method, request.path, live.ask(request))

        fire()
    assert live.runner.run(ask(live.port, "/healthz")).status == 200
    assert live.runner.run(still_sane(live.port)).json == {"passed": True, "readOnly": False}


def test_what_a_parameter_must_be_is_enforced(live: Bookie) -> None:
    """A value against the schema, or a required one that is missing, is the caller's error, and named."""
    judged = 0
    for method, path, operation in live.document.operations:
        for each in operation["parameters"]:
            others = [(name, "1") for name in required(operation) if name != each["name"]]
            wrong = [[(each["name"], text)] for text in against(each["schema"])]
            for query in [*wrong, *([[]] if each["required"] else [])]:
                answer = live.ask(Request(method, path, others + query))
                live.document.judge(method, path, answer)
                assert 400 <= answer.status < 500, f"{method} {path} {query}: {answer}"
                judged += 1
    assert judged > 15


@pytest.mark.parametrize("method", ["PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND"])
def test_a_method_that_nobody_offers(live: Bookie, method: str) -> None:
    for path in live.document.content["paths"]:
        answer = live.ask(Request(method, path))
        assert answer.status in (404, 405) or (method, answer.status) == ("HEAD", 200), f"{method} {path}: {answer}"


@settings(max_examples=100, deadline=None)
@given(path=st.lists(WILD, max_size=4).map("/".join), method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]))
def test_a_path_that_is_not_there(live: Bookie, path: str, method: str) -> None:
    target = "/api/v1/nowhere/" + urllib.parse.quote(path, safe="/")
    assert live.ask(Request(method, target)).status in (400, 404)


def required(operation: dict[str, Any]) -> list[str]:
    return [each["name"] for each in operation["parameters"] if each["required"]]


def against(schema: dict[str, Any]) -> list[str]:
    """Texts that the schema forbids. A flag takes anything, as in the reference."""
    if "enum" in schema:
        return ["no such choice", ""]
    if schema["type"] == "integer":
        return ["", "x", "1.5", "0x10", "9" * 30, str(schema.get("minimum", 0) - 1)]
    return []


async def still_sane(port: int) -> HttpAnswer:
    await ask(port, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": false}')
    return await ask(port, "/api/v1/bookie/sanity")
