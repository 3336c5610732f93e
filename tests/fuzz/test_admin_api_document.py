"""Schemathesis against a live bookie: what `/openapi.json` allows is accepted, and answered as it says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import positive_data_acceptance

from tests.support.ledgers_of_bookie import some_ledgers
from tests.support.live_bookie import live_bookie

EXAMPLES = 10
DEPENDS = {
    "PUT /api/v1/config/server_config": "keys that there are",
    "PUT /api/v1/bookie/gc/suspend_compaction": "one of its members at least",
    "PUT /api/v1/bookie/gc/resume_compaction": "one of its members at least",
    "PUT /api/v1/bookie/gc/deletions": "one of its members at least",
    "PUT /api/v1/bookie/entry_location_compact": "paths of this bookie's indexes",
    "PUT /api/v1/bookie/index_rebuild": "this bookie's directories",
    "GET /api/v1/ledger/read": "a page within the ledger",
    "PUT /api/v1/autorecovery/decommission": "a bookie of the cluster",
    "PUT /api/v1/autorecovery/decommission/undo": "a bookie of the cluster",
    "PUT /api/v1/autorecovery/bookie": "bookies of the cluster",
    "POST /api/v1/bookie/cookie": "a cookie's text",
    "PUT /api/v1/bookie/cookie": "a cookie's text",
}
"""Operations that refuse more than a schema can say, and what they want."""


class LoopThread:
    """An event loop for a bookie, while another thread asks it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    loop = LoopThread()
    context = live_bookie(tmp_path_factory.mktemp("live"))
    try:
        bookie = loop.run(context.__aenter__())
        try:
            loop.run(some_ledgers(bookie))
            yield f"http://127.0.0.1:{bookie.config.http.server_port}"
        finally:
            loop.run(context.__aexit__(None, None, None))
    finally:
        loop.stop()


@pytest.mark.timeout(300)
def test_every_operation_keeps_to_the_document(address: str) -> None:
    document = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [found.ok() for found in document.get_all_operations()]
    for operation in operations:
        try_out(operation)
    assert {operation.label for operation in operations} > DEPENDS.keys()


def try_out(operation: Any) -> None:
    left_out = [positive_data_acceptance] if operation.label in DEPENDS else []

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        case.call_and_validate(timeout=30, excluded_checks=left_out)

    ask()
