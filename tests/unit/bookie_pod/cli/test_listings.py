"""Lists of ledgers and streams: one whose metadata is damaged is told in its place, and the list goes on. So it does
behind one that was created when no calendar tells."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest

from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamSettings
from bookie_pod.cli.ledger import showing as ledger_showing
from bookie_pod.cli.ledger.showing import delete_ledgers, list_ledgers
from bookie_pod.cli.stream import showing
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger, Refused
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.versioned import UNSTORED

Capture = pytest.CaptureFixture[str]


class Cluster:
    """Three ledgers and three streams, the second of each damaged."""

    def __init__(self) -> None:
        self.client = self.service = self
        self.deleted: list[int] = []

    async def delete(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)

    async def list(self) -> AsyncIterator[int]:
        for ledger_id in (0, 1, 2):
            yield ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        if ledger_id == 1:
            raise MetadataDamaged("/ledgers/L0001 is no ledger metadata")
        if ledger_id > 3:
            raise NoSuchLedger(f"ledger {ledger_id}")
        return LedgerMetadata(ledger_id, 1, 1, 1, {0: ("b1",)}, ctime=(1 << 62) - ledger_id)


class Streams:
    async def names(self) -> set[str]:
        return {"a", "b", "c"}

    async def manifest(self, name: str) -> Manifest:
        if name == "b":
            raise MetadataDamaged("the head of stream b is damaged")
        return Manifest(name, UNSTORED, 0, (), StreamSettings(), created_ms=1 << 62)


@pytest.mark.parametrize("as_json", [True, False])
async def test_ledgers(capsys: Capture, as_json: bool) -> None:
    cluster: Any = Cluster()
    await list_ledgers(cluster, is_long=True, as_json=as_json)
    told = capsys.readouterr()
    lines = told.out.splitlines()
    if as_json:
        assert [(each["ledger_id"], each["state"]) for each in map(json.loads, lines)] == [
            (0, "OPEN"),
            (1, "DAMAGED"),
            (2, "OPEN"),
        ]
    else:
        assert [line.split()[:2] for line in lines[-3:]] == [["0", "OPEN"], ["1", "DAMAGED"], ["2", "OPEN"]]
    assert told.err == "bookie: /ledgers/L0001 is no ledger metadata\n"


@pytest.mark.parametrize("as_json", [True, False])
async def test_streams(monkeypatch: pytest.MonkeyPatch, capsys: Capture, as_json: bool) -> None:
    monkeypatch.setattr(showing, "streams_of", lambda cluster: Streams())
    cluster: Any = Cluster()
    await showing.list_streams(cluster, is_long=True, as_json=as_json)
    told = capsys.readouterr()
    lines = told.out.splitlines()
    if as_json:
        assert [(each["stream"], each["state"]) for each in map(json.loads, lines)] == [
            ("a", "closed"),
            ("b", "damaged"),
            ("c", "closed"),
        ]
    else:
        assert [line.split()[:2] for line in lines[-3:]] == [["a", "closed"], ["b", "damaged"], ["c", "closed"]]
    assert told.err == "bookie: the head of stream b is damaged\n"


class Lists:
    """Of streams: one has ledger 2."""

    def __init__(self, service: object) -> None:
        pass

    async def listing(self, among: set[int]) -> dict[int, frozenset[str]]:
        return {each: frozenset({"orders"}) for each in among if each == 2}


@pytest.mark.parametrize(
    ("named", "force", "deleted", "error", "told"),
    [
        ((0, 1, 3), False, [0, 3], MetadataDamaged, "/ledgers/L0001 is "),
        (
            (1, 2, 3),
            False,
            [3],
            Refused,
            "ledger 2 .* orders; /ledgers/L0001 ",
        ),
        ((7, 0, 8), False, [0], NoSuchLedger, "ledger 7 .*; ledger 8 "),
        ((1, 2, 3), True, [1, 2, 3], None, ""),
    ],
)
async def test_what_cannot_be_deleted_keeps_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[int, ...],
    force: bool,
    deleted: list[int],
    error: type[Exception] | None,
    told: str,
) -> None:
    monkeypatch.setattr(ledger_showing, "ManifestStore", Lists)
    cluster: Any = Cluster()
    with nullcontext() if error is None else pytest.raises(error, match=f"^{told}"):
        await delete_ledgers(cluster, named, force=force, as_json=False)
    assert cluster.deleted == deleted
