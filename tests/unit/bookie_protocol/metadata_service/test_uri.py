from __future__ import annotations

import socket

import pytest

from bookie_protocol.errors import InvalidConfiguration, MetadataUnavailable
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.options import MetadataDriver
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("zk://h1:2181;h2:2182/prod/bk/ledgers", None),
        ("zk+null://h1:2181;h2:2182/prod/bk/ledgers", None),
        ("ZK+Hierarchical://h1:2181;h2:2182/prod/bk/ledgers/", LedgerLayout.HIERARCHICAL),
        ("zk+longhierarchical://h1;h2:2182/prod/bk/ledgers", LedgerLayout.LONG_HIERARCHICAL),
        ("zk+flat://h1:2181,h2:2182/prod/bk/ledgers", LedgerLayout.FLAT),
    ],
)
def test_zookeeper(text: str, layout: LedgerLayout | None) -> None:
    uri = parse_metadata_service_uri(text)
    assert uri.driver is MetadataDriver.ZOOKEEPER
    assert uri.connect_string == "h1:2181,h2:2182"
    assert (uri.root, uri.layout) == ("/prod/bk/ledgers", layout)


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("metadata-store:zk:h1:2181,h2:2182", "/ledgers"),
        ("metadata-store:zk:h1;h2:2182/", "/ledgers"),
        ("metadata-store:zk:h1:2181,h2:2182/prod/pulsar", "/prod/pulsar/ledgers"),
        ("metadata-store:zk://h1:2181;h2:2182/ledgers", "/ledgers/ledgers"),
    ],
)
def test_zookeeper_as_pulsar_writes_it_has_the_root_ledgers_below_its_chroot(text: str, root: str) -> None:
    uri = parse_metadata_service_uri(text)
    assert uri.driver is MetadataDriver.ZOOKEEPER
    assert (uri.connect_string, uri.root, uri.layout) == ("h1:2181,h2:2182", root, None)


def test_embedded() -> None:
    served = parse_metadata_service_uri("embedded://127.0.0.1:3183/ledgers")
    assert (served.driver, served.hosts, served.root) == (
        MetadataDriver.SERVED,
        (("127.0.0.1", 3183),),
        "/ledgers",
    )
    for text in ("/var/lib/metadata", "file:///var/lib/metadata"):
        owned = parse_metadata_service_uri(text)
        assert (owned.driver, owned.folder, owned.root) == (
            MetadataDriver.OWNED,
            "/var/lib/metadata",
            "/ledgers",
        )


def test_hosts_are_names_and_addresses_of_every_kind() -> None:
    text = "zk://[::1];[fe80::1%eth0]:2182;10.0.0.7;zk-0.zk.svc.cluster.local.:2183;bücher.example/ledgers"
    assert parse_metadata_service_uri(text).hosts == (
        ("[::1]", 2181),
        ("[fe80::1%eth0]", 2182),
        ("10.0.0.7", 2181),
        ("zk-0.zk.svc.cluster.local.", 2183),
        ("bücher.example", 2181),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no scheme"),
        ("ledgers", "no scheme"),
        ("zk:///ledgers", "no host"),
        ("zk://;/ledgers", "no host"),
        ("zk://h:2181", "no path"),
        ("zk://h:2181/", "no path"),
        ("zk://h:2181/a//b", "node"),
        ("zk://h:2181/a/../b", "node"),
        ("zk://h:0/ledgers", "host:port"),
        ("zk://h:x/ledgers", "host:port"),
        ("zk://:2181/ledgers", "host:port"),
        ("zk://a..b:2181/ledgers", "'a..b'"),
        ("zk://h:2181;a..b/ledgers", "'a..b'"),
        ("zk+ms://h:2181/ledgers", "layout 'ms'"),
        ("zk+legacyhierarchical://h:2181/ledgers", "longhierarchical"),
        ("etcd+null://h:2379/scope", "no driver"),
        ("metadata-store:etcd:http://h:2379", "ZooKeeper"),
        ("metadata-store:oxia://h:6648/default/more", "always /ledgers"),
        ("metadata-store:oxia:///default", "no host"),
        ("oxia://h:6648/default//a", "node"),
        ("oxia+null://h:6648/default", "no driver"),
        ("metadata-store:zk:", "no host"),
        ("metadata-store:zk:h:x", "host:port"),
        ("metadata-store:zk:h:2181/a//b", "node"),
        ("embedded://h/ledgers", "a port; .*embedded://<host>:<port>/ledgers"),
        ("embedded://h:1;i:2/ledgers", "by one .*embedded://<host>:<port>/ledgers"),
        ("embedded:///ledgers", "no host; .* embedded://<host>:<port>/ledgers"),
        ("embedded://[::1]/ledgers", "a port"),
        ("file://host/x", "file:///"),
    ],
)
def test_refusals_name_the_key_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        parse_metadata_service_uri(text)
    assert str(caught.value).startswith(f"metadataServiceUri={text} is refused: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "zk://user:s3cret@h:2181/ledgers",
        "zk://g:2181;user:s3cret@h:2181/ledgers",
        "embedded://user:s3cret@h:2181/ledgers",
        "embedded://user:s3/cret@h:2181/ledgers",
        "metadata-store:zk:user:s3cret@h:2181/ledgers",
        "nonsense://user:s3cret@h:2181/ledgers",
    ],
)
def test_a_login_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"=[a-z:/]*\.\.\.@h:2181/ledgers .*: .* keys") as caught:
        parse_metadata_service_uri(text)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "zk://h:2181/ledgers?token=s3cret",
        "zk://h:2181/ledgers#s3cret",
        "zk://h:2181?token=s3cret",
        "embedded://h:2181/ledgers?token=s3cret\ns3cret",
        "embedded://user:s3cret@h:2181/ledgers?token=s3cret",
        "metadata-store:zk:h:2181/chroot?token=s3cret",
        "h:2181?token=s3cret",
        "nonsense://h:2181/?token=s3cret",
    ],
)
def test_a_query_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"h:2181[a-z/]*\?\.\.\. is refused: .* keys") as caught:
        parse_metadata_service_uri(text)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["zk+null", "embedded"])
async def test_nobody_listens(scheme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(MetadataUnavailable, match=rf"127\.0\.0\.1:{port}.*0\.5 s: check metadataServiceUri"):
        await open_metadata_service(f"{scheme}://127.0.0.1:{port}/ledgers", timeout=0.5)


@pytest.mark.parametrize(
    ("text", "hosts", "namespace", "root", "seconds"),
    [
        ("metadata-store:oxia://h:6648/pulsar", (("h", 6648),), "pulsar", "/ledgers", None),
        ("metadata-store:oxia://h", (("h", 6648),), "default", "/ledgers", None),
        ("metadata-store:oxia://h:1/ns/?sessionTimeoutMillis=30000", (("h", 1),), "ns", "/ledgers", 30.0),
        (
            "metadata-store:oxia://h:1/ns?batchingEnabled=true&configFilePath=/a/b.yaml",
            (("h", 1),),
            "ns",
            "/ledgers",
            None,
        ),
        ("oxia://h:1,i:2;[::1]:3/ns", (("h", 1), ("i", 2), ("[::1]", 3)), "ns", "/ledgers", None),
        ("oxia://h:1/ns/a/ledgers", (("h", 1),), "ns", "/a/ledgers", None),
    ],
)
def test_oxia_as_pulsar_writes_it(
    text: str, hosts: tuple[tuple[str, int], ...], namespace: str, root: str, seconds: float | None
) -> None:
    found = parse_metadata_service_uri(text)
    assert (found.driver, found.hosts, found.namespace) == (MetadataDriver.OXIA, hosts, namespace)
    assert (found.root, found.session_seconds) == (root, seconds)
    assert found.client_file == ("/a/b.yaml" if "configFilePath" in text else None)


def test_all_parameters_of_pulsars_client_are_taken() -> None:
    """As stock configurations of Pulsar 5 have them."""
    names = ("configFilePath", "sessionTimeoutMillis", "batchingMaxDelayMillis", "batchingMaxOperations")
    names += ("batchingMaxSizeKb", "numSerDesThreads", "fsyncEnable", "batchingEnabled", "allowReadOnlyOperations")
    query = "&".join(f"{name}=1" for name in names)
    assert parse_metadata_service_uri(f"metadata-store:oxia://h:6648/ns?{query}").session_seconds == 0.001


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?surprise=secret", "parameter .*surprise"),
        ("?sessionTimeoutMillis=30000&Surprise", "parameter Surprise"),
        ("?sessionTimeoutMillis=30s", "sessionTimeoutMillis"),
        ("?sessionTimeoutMillis=0", "sessionTimeoutMillis"),
        ("?sessionTimeoutMillis=", "sessionTimeoutMillis"),
        (f"?sessionTimeoutMillis={'9' * 5000}", "sessionTimeoutMillis"),
        ("\ud800", "UTF-8"),
        ("#secret", "password"),
    ],
)
def test_an_unknown_parameter_of_oxia_is_refused_by_its_name(query: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        parse_metadata_service_uri(f"metadata-store:oxia://h:6648/ns{query}")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_login_in_a_uri_of_oxia_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_metadata_service_uri("metadata-store:oxia://user:s3cret@h:6648/ns")
    assert "s3cret" not in str(caught.value)
