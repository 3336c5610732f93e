"""A metadata service and a bookie as processes, for tests that need no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_pod.node.standalone import cluster as standalone
from tests.support.collected_bookie import CollectedBookie
from tests.support.metadata_process import MetadataProcess
from tests.support.warm import start_bookie


@pytest.fixture
def warm_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a `StandaloneCluster` in this process are forks of a warm parent."""
    monkeypatch.setattr(standalone, "start_child", start_bookie)


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataProcess]:
    process = MetadataProcess(tmp_path / "metadata")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def bookie(tmp_path: Path, metadata: MetadataProcess) -> Iterator[CollectedBookie]:
    with CollectedBookie(tmp_path / "b", metadata.uri()) as process:
        process.start()
        yield process
