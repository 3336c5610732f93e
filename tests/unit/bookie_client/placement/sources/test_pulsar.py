"""Racks as Apache Pulsar's administrators assign them."""

import pytest

from bookie_client.placement.sources.pulsar import PulsarRacks
from bookie_protocol.errors import CouldNotTell
from tests.unit.bookie_client.placement.sources.infos import Infos


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
        with pytest.raises(CouldNotTell, match="node bookies cannot be read"):
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
