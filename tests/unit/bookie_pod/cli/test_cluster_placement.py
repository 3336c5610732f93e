"""`bookie cluster placement`, on a metadata store in a folder: bookies are registered, few of them run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_client import Client, PlacementOptions
from bookie_client.distribution import Quorums
from bookie_client.placement.explain import explain_cluster
from bookie_pod.cli.cluster.showing import DryRun, show_placement
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.main import run
from bookie_protocol.errors import BadRequest
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.model_bookie import ModelBookie, ModelBookieServer

Capture = pytest.CaptureFixture[str]
PLACES = {"a1": "/a", "a2": "/a", "a3": "/a", "b1": "/b", "b2": "/b"}


async def register(service: MetadataService, bookie: str, group: BookieGroup, location: str, port: int = 1) -> None:
    endpoint = Endpoint("bookie", "127.0.0.1", port, BOOKIE_RPC)
    await service.bookies.register(bookie, group, BookieServiceInfo((endpoint,), {"networkLocation": location}))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[MetadataService]:
    """Five bookies in two racks; a3 is read-only, and c1 is down."""
    uri = str(tmp_path / "metadata")
    service = await open_metadata_service(uri)
    await service.cluster.initialize()
    for bookie, location in PLACES.items():
        await register(service, bookie, BookieGroup.READ_ONLY if bookie == "a3" else BookieGroup.WRITABLE, location)
    await service.cookies.create("c1", b"4\n")
    yield service
    await service.close()


async def dry_run(
    service: MetadataService,
    quorums: tuple[int, int, int] = (2, 2, 2),
    *,
    excluded: tuple[str, ...] = (),
    seed: int = 0,
    as_json: bool = True,
    placement: PlacementOptions | None = None,
) -> int:
    async with Client(service, placement=placement) as client:
        wanted = DryRun(quorums, frozenset(excluded), seed)
        return await show_placement(Cluster(client, service), wanted, as_json=as_json)


async def test_everybody_is_accounted_for(service: MetadataService, capsys: Capture) -> None:
    assert await dry_run(service) == 0
    told = json.loads(capsys.readouterr().out)
    candidates = {one["bookie_id"]: one for one in told.pop("candidates")}
    ensemble = told.pop("ensemble")
    assert sorted(PLACES[bookie] for bookie in ensemble) == ["/a", "/b"]
    assert told == {
        "policy": "rack-aware",
        "rule": "rack-aware: write sets on at least 2 racks, relaxed when it must be",
        "ensemble_size": 2,
        "write_quorum": 2,
        "ack_quorum": 2,
        "seed": 0,
        "error": None,
        "adherence": "MEETS_STRICT",
        "problems": [],
        "relaxed": [],
    }
    assert [candidates[bookie]["position"] for bookie in ensemble] == [0, 1]
    assert candidates["a3"] == {
        "bookie_id": "a3",
        "fate": "refused",
        "reason": "read-only",
        "position": None,
        "location": "/a",
        "free_bytes": None,
    }
    assert (candidates["c1"]["fate"], candidates["c1"]["reason"]) == ("refused", "down")
    assert candidates.keys() == {*PLACES, "c1"}


async def test_it_is_the_choice_of_a_client_and_a_seed_repeats_it(service: MetadataService, capsys: Capture) -> None:
    chosen = set()
    for seed in range(12):
        for _ in range(2):
            assert await dry_run(service, seed=seed) == 0
        first, second = (tuple(json.loads(line)["ensemble"]) for line in capsys.readouterr().out.splitlines())
        async with Client(service) as client:
            expected = explain_cluster(client.placement, Quorums(2, 2, 2), await client.cluster_view(), seed)
        assert first == second == expected.ensemble
        chosen.add(first)
    assert len(chosen) > 1


async def test_who_is_excluded_is_not_taken(service: MetadataService, capsys: Capture) -> None:
    assert await dry_run(service, excluded=("b1", "b9")) == 0
    told = json.loads(capsys.readouterr().out)
    reasons = {one["bookie_id"]: one["reason"] for one in told["candidates"]}
    assert "b2" in told["ensemble"]
    assert (reasons["b1"], reasons["b9"]) == ("excluded", "excluded; not known here")


async def test_what_is_given_up_and_what_cannot_be_is_told(service: MetadataService, capsys: Capture) -> None:
    assert await dry_run(service, excluded=("b1", "b2"), as_json=False) == 0
    text = capsys.readouterr().out
    assert "relaxed  write sets may lie on 1 instead of 2 racks\n" in text
    enforced = PlacementOptions(enforce_racks=True)
    assert await dry_run(service, excluded=("b1", "b2"), placement=enforced) == 10
    told = json.loads(capsys.readouterr().out)
    assert (told["ensemble"], told["adherence"]) == ([], None)
    assert "obeys the placement policy (rack-aware: write sets on at least 2 racks, enforced)" in told["error"]
    with pytest.raises(BadRequest, match="quorums"):
        await dry_run(service, (2, 3, 2))
    with pytest.raises(BadRequest, match="most 200 are"):
        await dry_run(service, (10**23, 2, 2))


async def test_free_space_counts_where_it_weighs(service: MetadataService, capsys: Capture) -> None:
    server = ModelBookieServer(ModelBookie("b3"))
    server.bookie.free_bytes = 4711
    await server.start()
    try:
        await register(service, "b3", BookieGroup.WRITABLE, "/b", server.port)
        for weighted in (False, True):
            assert await dry_run(service, placement=PlacementOptions(weighted=weighted)) == 0
    finally:
        await server.stop()
    plain, weighted = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert {one["free_bytes"] for one in plain["candidates"]} == {None}
    assert {one["bookie_id"]: one["free_bytes"] for one in weighted["candidates"] if one["free_bytes"]} == {"b3": 4711}


def test_the_command_line(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    uri = str(tmp_path / "metadata")
    assert run(["cluster", "init", uri]) == 0
    capsys.readouterr()
    (tmp_path / "bk.conf").write_text("ensemblePlacementPolicy=ZoneawareEnsemblePlacementPolicy\n")
    sizes = ["--ensemble", "5", "--write-quorum", "4", "--ack-quorum", "3"]
    others = ["--exclude", "b1,b2", "--exclude", "b3", "--seed", "7", "--json"]
    words = ["cluster", "placement", "-m", uri, "--config", str(tmp_path / "bk.conf"), *sizes, *others]
    assert run(words) == 10
    told = json.loads(capsys.readouterr().out)
    assert [one["bookie_id"] for one in told["candidates"]] == ["b1", "b2", "b3"]
    assert [told[name] for name in ("ensemble_size", "write_quorum", "ack_quorum", "seed")] == [5, 4, 3, 7]
    assert told["policy"] == "zone-aware"
    assert run(["cluster", "placement", "-m", uri, "--exclude", "b 1"]) == 1
    assert capsys.readouterr().err == "bookie: 'b 1' is not a valid bookie id\n"
