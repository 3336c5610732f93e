"""Clusters that run on this machine are found by other commands, and those that ended are not."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from bookie_pod.cli import local_clusters
from bookie_pod.cli.bookie_api import default_url
from bookie_pod.cli.connection import Connection
from bookie_pod.cli.local_clusters import LocalCluster, announced, running, the_one
from bookie_protocol.errors import InvalidConfiguration

ONE = LocalCluster("embedded://127.0.0.1:1/ledgers", "/data/one", ("http://127.0.0.1:8000",))
OTHER = LocalCluster("embedded://127.0.0.1:2/ledgers", "/data/other", ())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("BK_metadataServiceUri", "BOOKIE_CONF", "BOOKIE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "podkeeper" / "clusters"


def announce_of_another_process(folder: Path, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    return announced(cluster)


def test_cluster_is_found_while_it_runs(folder: Path) -> None:
    assert running() == []
    with announced(ONE):
        assert running() == [ONE]
        assert Connection(None, None, ()).uri() == ONE.metadata_service
        assert default_url() == ONE.http[0]
        assert [each.stat().st_mode & 0o077 for each in (folder, *folder.iterdir())] == [0, 0]
    assert running() == []
    assert list(folder.iterdir()) == []


def test_file_whose_process_ended_is_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps({"metadata_service": "x", "data": "/", "http": []}))
    assert running() == []
    assert list(folder.iterdir()) == []


def test_removal_of_a_stale_file_removes_no_cluster_whose_process_has_the_same_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is announced between the look at the file and its removal; so is one of another container."""
    folder.mkdir(parents=True)
    content = json.dumps({"metadata_service": "x", "data": "/", "http": []})
    (folder / f"{os.getpid()}.json").write_text(content)
    is_stale, begun = local_clusters._is_stale, ExitStack()

    def while_another_begins(descriptor: int) -> bool:
        stale = is_stale(descriptor)
        monkeypatch.setattr(local_clusters, "_is_stale", is_stale)
        for cluster in (ONE, OTHER):
            begun.enter_context(announced(cluster))
        return stale

    monkeypatch.setattr(local_clusters, "_is_stale", while_another_begins)
    with begun:
        assert running() == []
        assert running() == [ONE, OTHER]
    assert list(folder.iterdir()) == []


def test_two_clusters_are_listed_and_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with announced(OTHER), announce_of_another_process(folder, ONE, monkeypatch):
        assert running() == [ONE, OTHER]
        for ask in (Connection(None, None, ()).uri, default_url):
            with pytest.raises(InvalidConfiguration) as told:
                ask()
            assert all(text in str(told.value) for text in (ONE.metadata_service, OTHER.metadata_service, OTHER.data))
        assert Connection("zk+null://zk/ledgers", None, ()).uri() == "zk+null://zk/ledgers"
        monkeypatch.setenv("BK_metadataServiceUri", ONE.metadata_service)
        assert (Connection(None, None, ()).uri(), default_url()) == (ONE.metadata_service, ONE.http[0])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"metadata_service": 1, "data": "", "http": []}', '{"data": "x"}'])
def test_file_that_is_not_ours_is_passed_over(folder: Path, content: str) -> None:
    with announced(ONE):
        (file,) = folder.iterdir()
        file.write_text(content)
        assert running() == []


def test_file_of_another_user_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with announced(ONE):
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert running() == []


def test_place_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    with pytest.raises(OSError), announced(ONE):
        pass
    assert the_one("") is None
