"""Mapping, file, script and published locations.

What bookies publish, in a dict.

Racks as Apache Pulsar's administrators assign them.
"""

import asyncio
import os

import pytest

from bookie_client.placement import sources
from bookie_client.placement.sources import (
    ZONE_AND_DOMAIN,
    FileLocations,
    MappedLocations,
    PublishedLocations,
    PulsarRacks,
    ScriptLocations,
    location_from,
)
from bookie_protocol.errors import BadRequest, CouldNotTell, MetadataDamaged, MetadataUnavailable
from tests.unit.bookie_client.placement.clusters import Infos


def write(path, text):
    path.write_text(text)
    return str(path)


# --- mapping ----------------------------------------------------------------------------------------------


async def test_a_bookie_is_found_by_its_id_its_host_or_both():
    source = MappedLocations({"b0": "/a", "10.0.0.1": "/b", "10.0.0.2:3181": "/c", "h3": "/d", "b5": "/default-rack"})
    infos = Infos(b0="10.0.0.1", b1="10.0.0.1", b2="10.0.0.2", b4="10.0.0.9", b5="10.0.0.1")
    found = await source.locate(["b0", "b1", "b2", "h3:3181", "b4", "b5"], infos)
    assert found == {"b0": ("a",), "b1": ("b",), "b2": ("c",), "h3:3181": ("d",)}
    assert "b0" not in infos.asked  # its id told enough
    assert await source.locate_host("h3") == ("d",)
    assert await source.locate_host("h9") is None


# --- file -------------------------------------------------------------------------------------------------


async def test_a_file_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "racks"
    source = FileLocations(write(path, "b0 /a\n"))
    await source.open()
    assert await source.locate(["b0"], Infos()) == {"b0": ("a",)}
    write(path, "b0 /other\n")
    assert await source.locate(["b0"], Infos()) == {"b0": ("other",)}


async def test_a_file_that_becomes_bad_changes_nothing_and_is_told_once(tmp_path, caplog):
    path = tmp_path / "racks"
    source = FileLocations(write(path, "b0 /a\n"))
    await source.open()
    write(path, "nonsense\n")
    for _ in range(3):
        assert await source.locate(["b0"], Infos()) == {"b0": ("a",)}
    assert caplog.text.count("stays as it was") == 1
    os.unlink(path)
    for _ in range(3):
        assert await source.locate(["b0"], Infos()) == {"b0": ("a",)}
    assert caplog.text.count("stays as it was") == 2
    write(path, "b0 /new\n")
    assert await source.locate(["b0"], Infos()) == {"b0": ("new",)}


@pytest.mark.parametrize("content", [None, b"nonsense", b"\xff\xfe /a"])
async def test_a_file_that_is_bad_from_the_start_is_refused(tmp_path, content):
    path = tmp_path / "racks"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadRequest, match=str(path)):
        await FileLocations(str(path)).open()


# --- script -----------------------------------------------------------------------------------------------

RACK_OF_LAST_DIGIT = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
for host in "$@"; do echo "/rack-${host#"${host%?}"}"; done
"""


@pytest.fixture
def rack_script(tmp_path):
    def make(text=RACK_OF_LAST_DIGIT, **options):
        path = tmp_path / "topology.sh"
        path.write_text(text)
        path.chmod(0o755)
        return ScriptLocations(str(path), **options)

    return make


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


async def test_a_script_gets_hosts_and_answers_are_kept(rack_script, tmp_path):
    source = rack_script(max_arguments=2)
    await source.open()
    infos = Infos(b1="10.0.0.1", b2="10.0.0.2", b3="10.0.0.3")
    expected = {"b1": ("rack-1",), "b2": ("rack-2",), "b3": ("rack-3",), "h4:3181": ("rack-4",)}
    assert await source.locate([*infos.hosts, "h4:3181"], infos) == expected
    assert calls(tmp_path) == ["10.0.0.1 10.0.0.2", "10.0.0.3 h4"]
    assert await source.locate(["b1"], infos) == {"b1": ("rack-1",)}
    assert await source.locate_host("10.0.0.9") == ("rack-9",)
    assert len(calls(tmp_path)) == 3


async def test_what_is_kept_is_bounded_in_number_and_time(rack_script, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_KEPT", 2)
    source = rack_script()
    for host in ("h1", "h2", "h3"):
        await source.locate_host(host)
    assert len(source._kept) <= 2
    monkeypatch.setattr(sources, "KEEP_SECONDS", -1.0)
    await source.locate_host("h4")
    await source.locate_host("h4")
    assert calls(tmp_path)[-2:] == ["h4", "h4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\nexit 3\n", "3 and 0"),
        ("#!/bin/sh\necho /a /b\n", "0 and 2"),
        ("#!/nowhere/interpreter\n", "be run"),
    ],
)
async def test_a_script_that_fails_cannot_tell(rack_script, text, message):
    with pytest.raises(CouldNotTell, match=message):
        await rack_script(text).locate_host("h1")


async def test_a_script_that_hangs_is_ended(rack_script, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SCRIPT_SECONDS", 0.1)
    source = rack_script('#!/bin/sh\necho $$ > "$(dirname "$0")/pid"\nexec sleep 60\n')
    with pytest.raises(CouldNotTell, match=r"0\.1 s"):
        await source.locate_host("h1")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_missing_script_is_refused(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(BadRequest, match="executable"):
            await ScriptLocations(str(path)).open()
    with pytest.raises(BadRequest, match="networkTopologyScriptNumberArgs"):
        ScriptLocations("x", max_arguments=0)


# --- published --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "parts", "expected"),
    [
        ({"networkLocation": "/east/r1", "zone": "z"}, ("zone",), ("east", "r1")),
        ({"region": "east", "zone": "z1", "rack": "r1"}, ("region", "zone", "rack"), ("east", "z1", "r1")),
        ({"rack": "/r1"}, ("region", "zone", "rack"), ("r1",)),
        ({"zone": "z1", "upgradeDomain": "2"}, ZONE_AND_DOMAIN, ("z1", "2")),
        ({"zone": " "}, ZONE_AND_DOMAIN, None),
        ({"networkLocation": "/default-rack"}, ZONE_AND_DOMAIN, None),
        ({}, ZONE_AND_DOMAIN, None),
    ],
)
def test_a_location_from_properties(properties, parts, expected):
    assert location_from(properties, parts) == expected


async def test_what_one_bookie_cannot_tell_does_not_hide_the_others():
    infos = Infos(b0="h", b1="h", b2="h")
    infos.properties = {"b0": {"zone": "a"}, "b1": {"zone": "b"}}
    infos.failures = {"b1": MetadataDamaged("unreadable"), "b2": MetadataUnavailable("no answer")}
    assert await PublishedLocations().locate(["b0", "b1", "b2", "gone"], infos) == {"b0": ("a",)}
    with pytest.raises(CouldNotTell, match="no answer"):
        await PublishedLocations().locate(["b1", "b2"], infos)
    assert await PublishedLocations().locate_host("h") is None


async def test_what_a_bookie_told_before_holds_while_its_registration_cannot_be_read():
    infos = Infos(b0="h0", b1="h1", b2="h2")
    infos.properties = {bookie: {"networkLocation": f"/{bookie}"} for bookie in ("b0", "b1", "b2")}
    source = PublishedLocations()
    every = {"b0": ("b0",), "b1": ("b1",), "b2": ("b2",)}
    assert await source.locate(["b0", "b1", "b2"], infos) == every
    infos.failures = {"b1": MetadataUnavailable("no answer")}
    for _ in range(2):
        assert await source.locate(["b0", "b1", "b2"], infos) == every
    infos.failures = {}
    infos.properties["b1"] = {}
    assert await source.locate(["b0", "b1", "b2"], infos) == {"b0": ("b0",), "b2": ("b2",)}


async def test_few_registrations_are_read_at_once():
    under_way = most = 0

    class Slow(Infos):
        async def info(self, bookie_id):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return await super().info(bookie_id)

    infos = Slow(**{f"b{i}": "h" for i in range(50)})
    await PublishedLocations().locate(list(infos.hosts), infos)
    assert most == sources.MAX_ASKED


async def test_a_bookie_stands_where_pulsar_says_by_its_id_or_its_host():
    infos = Infos(b0="10.0.0.7")
    infos.racks = (
        b'{"default": {"h1:3181": {"rack": "/r1", "hostname": "h1"}, "10.0.0.7:3181": {"rack": "r2"}},'
        b' "other": {"h3:3181": {"rack": "/east/r3"}, "h4:3181": {"rack": "/"}, "h5:3181": {"hostname": "h5"}}}'
    )
    found = await PulsarRacks().locate(["h1:3181", "h1:3182", "b0", "h3:3181", "h4:3181", "h5:3181", "h6:3181"], infos)
    assert found == {"h1:3181": ("r1",), "h1:3182": ("r1",), "b0": ("r2",), "h3:3181": ("east", "r3")}


async def test_it_is_looked_at_again_each_time():
    infos, source = Infos(), PulsarRacks()
    assert await source.locate(["h1:3181"], infos) == {}
    infos.racks = b'{"default": {"h1:3181": {"rack": "/r1"}}}'
    assert await source.locate(["h1:3181"], infos) == {"h1:3181": ("r1",)}
    infos.racks = b"{}"
    assert await source.locate(["h1:3181"], infos) == {}


@pytest.mark.parametrize(
    "stored",
    [b"{", b"[]", b'{"g": []}', b'{"g": {"h:1": "/r"}}', b'{"g": {"h:1": {"rack": 7}}}', b"\xff", b"[" * 100_000],
)
async def test_what_cannot_be_understood_is_an_error_each_time_and_no_answer(stored):
    infos, source = Infos(), PulsarRacks()
    infos.racks = stored
    for _ in range(2):
        with pytest.raises(CouldNotTell, match=r"bookies .*read"):
            await source.locate(["h1:3181"], infos)


async def test_more_than_one_isolation_group_is_told_once(caplog):
    infos, source = Infos(), PulsarRacks()
    infos.racks = b'{"a": {"h1:1": {"rack": "/r"}}, "empty": {}}'
    await source.locate([], infos)
    assert "isolation" not in caplog.text
    for rack in (b"/r2", b"/r3"):
        infos.racks = b'{"a": {"h1:1": {"rack": "%s"}}, "b": {"h2:1": {"rack": "/r"}}}' % rack
        await source.locate([], infos)
    assert caplog.text.count("isolation groups") == 1
