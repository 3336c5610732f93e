"""docs/http-api.md follows the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_pod.admin.document import http_api_page
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.server.http.routes import resources

PAGE = Path(__file__).parents[4] / "docs" / "http-api.md"


@pytest.fixture(scope="module")
def page() -> str:
    return http_api_page()


def test_the_page_is_not_stale(page: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page, "run: python -m bookie_pod.admin.document > docs/http-api.md"


def test_every_operation_is_on_it(page: str) -> None:
    for resource in resources(RESOURCES, frozenset()):
        for operation in resource.operations:
            assert f"### {operation.route.method} {resource.path}" in page
