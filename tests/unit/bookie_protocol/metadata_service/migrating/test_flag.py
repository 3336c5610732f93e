"""What the coordinator of a migration says, and where the metadata are then."""

from __future__ import annotations

import pytest

from bookie_protocol.errors import InvalidConfiguration, MetadataDamaged
from bookie_protocol.metadata_service.migrating.flag import Migration, Phase, decode, scope_of, target_uri


def test_the_flag_as_pulsar_writes_it() -> None:
    found = decode(b'{"phase":"COPYING","targetUrl":"oxia://oxia:6648/bookkeeper"}')
    assert found == Migration(Phase.COPYING, "oxia://oxia:6648/bookkeeper")
    assert decode(b'{"phase":"NOT_STARTED","targetUrl":null}') == Migration(Phase.NOT_STARTED, "")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"phase": "THAWING", "targetUrl": ""}', b"{}", b"\xff"])
def test_what_cannot_be_understood_is_said(data: bytes) -> None:
    with pytest.raises(MetadataDamaged):
        decode(data)


def test_the_chroot_of_brokers_is_left_behind() -> None:
    migration = Migration(Phase.COMPLETED, "oxia://oxia:6648/bookkeeper")
    for root, scope in (("/ledgers", ""), ("/pulsar/ledgers", "/pulsar"), ("/a/b/ledgers", "/a/b")):
        assert scope_of(root) == scope
        uri = target_uri(migration, root)
        assert (uri.root, uri.namespace, uri.hosts) == ("/ledgers", "bookkeeper", (("oxia", 6648),))


@pytest.mark.parametrize("target", ["", "zk:zk-0:2181", "oxia://", "oxia://h:99999/x", "etcd://x", "None"])
def test_a_target_that_is_no_oxia_is_refused(target: str) -> None:
    with pytest.raises(InvalidConfiguration):
        target_uri(Migration(Phase.COMPLETED, target), "/ledgers")
