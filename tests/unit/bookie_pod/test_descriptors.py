"""The soft limit of open files follows the hard one."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from bookie_pod.descriptors import (
    FILES,
    MOST,
    SIDE_PORTS,
    bookie_connections,
    raise_descriptor_limit,
    side_connections,
)


@pytest.fixture
def hard() -> Iterator[int]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_it_becomes_the_hard_one(hard: int) -> None:
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    for _ in range(2):
        assert raise_descriptor_limit() == wanted
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, hard)


def test_files_keep_half_of_few_descriptors_and_enough_of_many(hard: int) -> None:
    """All ports together leave them."""
    for few in (256, 1024):
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        assert few // 2 == bookie_connections() + SIDE_PORTS * side_connections()
        assert bookie_connections() > 4 * side_connections() > 0
    raise_descriptor_limit()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections = bookie_connections() + SIDE_PORTS * side_connections()
    assert limit - connections == min(limit // 2, FILES)
