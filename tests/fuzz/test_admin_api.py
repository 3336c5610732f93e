"""Random requests of every documented operation, and of none, against a live bookie: it always answers as its own
OpenAPI document says, never with 500, never late, and it is sound afterwards."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_client import Client
from tests.support.http_answers import Document, HttpAnswer, ask
from tests.support.live_bookie import live_bookie

PATIENCE_S = 20.0
WILD = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
NUMBERS = st.integers(-(2**65), 2**65).map(str) | st.sampled_from(["0", "1", "-1", "+1", "1e3", "0x10", "9" * 400])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WILD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WILD, inner, max_size=3),
    max_leaves=6,
)
HARMLESS = {"gcWaitTime": "900000", "compactionRateByBytes": 5_000_000, "majorCompactionThreshold": 0.7}
"""What `server_config` may be set to while other tests go on with the same bookie."""


def text_of(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    choices = st.sampled_from(schema["enum"]) if "enum" in schema else st.nothing()
    usual = {"integer": st.integers(0, 30).map(str), "boolean": st.sampled_from(["true", "false"])}
    return choices | usual.get(schema["type"], WILD) | NUMBERS | WILD


def member_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return (st.booleans() if schema.get("type") == "boolean" else WILD) | JSON


def body_of(document: dict[str, Any], schema: dict[str, Any]) -> st.SearchStrategy[bytes | None]:
    import json

    if "$ref" in schema:
        named = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        known = st.fixed_dictionaries({}, optional={k: member_of(v) for k, v in named["properties"].items()})
    else:
        known = st.fixed_dictionaries({}, optional={key: st.just(value) for key, value in HARMLESS.items()})
    values = known | JSON
    return st.none() | values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60)


@st.composite
def requests(draw: st.DrawFn, document: Document) -> tuple[str, str, dict[str, str], bytes | None]:
    method, path, operation = draw(st.sampled_from(document.operations))
    query = {each["name"]: draw(text_of(each["schema"])) for each in operation["parameters"] if draw(st.integers(0, 3))}
    if not draw(st.integers(0, 4)):
        query[draw(WILD)] = draw(WILD)
    body = None
    if "requestBody" in operation:
        body = draw(body_of(document.content, operation["requestBody"]["content"]["application/json"]["schema"]))
    return method, path, query, body


async def check(port: int, document: Document, request: tuple[str, str, dict[str, str], bytes | None]) -> None:
    method, path, query, body = request
    began = time.monotonic()
    answer = await ask(port, path, method, body, query)
    assert time.monotonic() - began < PATIENCE_S
    assert answer.status != 500, f"{request}: {answer}"
    document.judge(method, path, answer)


def test_random_requests(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        context = live_bookie(tmp_path)
        bookie = runner.run(context.__aenter__())
        port = bookie.config.http.server_port
        try:
            runner.run(some_ledgers(bookie))
            document = Document(runner.run(ask(port, "/openapi.json")).json)

            @settings(
                max_examples=400,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )
            @given(requests(document))
            def fire(request: tuple[str, str, dict[str, str], bytes | None]) -> None:
                runner.run(check(port, document, request))

            fire()
            assert runner.run(ask(port, "/healthz")).status == 200
            assert runner.run(still_sane(port)).json == {"passed": True, "readOnly": False}
        finally:
            runner.run(context.__aexit__(None, None, None))


async def still_sane(port: int) -> HttpAnswer:
    await ask(port, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": false}')
    return await ask(port, "/api/v1/bookie/sanity")


async def some_ledgers(bookie: Any) -> None:
    async with Client(bookie._metadata) as client:
        for _ in range(5):
            async with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append_many([b"payload \xff"] * 20)
