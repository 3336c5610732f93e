"""These tests run on the event loop that a bookie runs on: what it reads, and when, is not what asyncio's own does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from bookie_pod.metrics.registry import Registry
from tests.unit.bookie_pod.server.nodes import FakeNode


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def registry() -> Registry:
    return Registry()
