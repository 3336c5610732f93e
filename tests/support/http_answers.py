"""Asking an HTTP server of the test, and judging its answers by its own OpenAPI document."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
from jsonschema import Draft202012Validator

from bookie_protocol.admin_api.bodies import PROBLEM_TYPE


class HttpAnswer(NamedTuple):
    status: int
    body: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def line(self) -> str:
        """What an error says, as a problem or as a text."""
        is_problem = self.headers["Content-Type"].startswith(PROBLEM_TYPE)
        return str(self.json["detail"]) if is_problem else self.body


async def ask(
    port: int,
    path: str,
    method: str = "GET",
    body: str | bytes | None = None,
    params: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    **headers: str,
) -> HttpAnswer:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        session.request(
            method, f"http://127.0.0.1:{port}{path}", data=_payload(body), params=params, headers=headers
        ) as answer,
    ):
        return HttpAnswer(answer.status, await answer.text(), dict(answer.headers))


def _payload(body: str | bytes | None) -> io.BytesIO | None:
    return None if body is None else io.BytesIO(body.encode() if isinstance(body, str) else body)


class Document:
    """An OpenAPI document as a judge."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        for schema in content["components"]["schemas"].values():
            Draft202012Validator.check_schema(schema)

    @property
    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Method, path, operation."""
        return [
            (method.upper(), path, operation)
            for path, methods in self.content["paths"].items()
            for method, operation in methods.items()
        ]

    def judge(self, method: str, path: str, answer: HttpAnswer) -> None:
        """AssertionError unless the document foresees this answer."""
        responses = self.content["paths"][path][method.lower()]["responses"]
        where = f"{method} {path} -> {answer.status} {answer.body[:300]}"
        assert str(answer.status) in responses, f"{where}: not documented"
        content = responses[str(answer.status)]["content"]
        kind = answer.headers["Content-Type"].partition(";")[0]
        assert kind in content, f"{where}: {kind} is not documented"
        schema = content[kind]["schema"]
        value = answer.json if kind.endswith("json") else answer.body
        problems = [
            f"{'/'.join(map(str, error.path))}: {error.message}"
            for error in Draft202012Validator(schema | {"components": self.content["components"]}).iter_errors(value)
        ]
        assert problems == [], f"{where}: {problems}"
