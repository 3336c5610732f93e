from __future__ import annotations

import pytest

from bookie_pod.config.sections.network import NetworkConfig
from bookie_pod.node.identity.bookie_id import (
    HostNetwork,
    bookie_service_info,
    candidate_bookie_ids,
    derive_bookie_id,
    derive_host,
)
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.service_info import Endpoint, encode_service_info


class Network:
    """A host with one interface and one name."""

    def __init__(self, address: str = "10.0.0.7", name: str | None = "bookie-0.bk.svc") -> None:
        self._address = address
        self._name = name

    def interface_address(self, name: str) -> str:
        if name != "eth0":
            raise OSError(19, "No such device")
        return "192.168.1.5"

    def default_address(self) -> str:
        if not self._address:
            raise OSError(-2, "Name or service not known")
        return self._address

    def canonical_name(self, address: str) -> str:
        if self._name is None:
            raise OSError(1, "Unknown host")
        return self._name


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (NetworkConfig(), "10.0.0.7:3181"),
        (NetworkConfig(bookie_port=4000), "10.0.0.7:4000"),
        (NetworkConfig(bookie_id="bookie-0", advertised_address="a"), "bookie-0"),
        (NetworkConfig(advertised_address="a.b", use_host_name_as_bookie_id=True), "a.b:3181"),
        (NetworkConfig(use_host_name_as_bookie_id=True), "bookie-0.bk.svc:3181"),
        (
            NetworkConfig(use_host_name_as_bookie_id=True, use_short_host_name=True),
            "bookie-0:3181",
        ),
        (NetworkConfig(listening_interface="eth0"), "192.168.1.5:3181"),
        (NetworkConfig(listening_interface="default"), "10.0.0.7:3181"),
    ],
)
def test_first_match_wins(options: NetworkConfig, expected: str) -> None:
    assert derive_bookie_id(options, Network()) == expected


def test_the_published_host_does_not_depend_on_the_id() -> None:
    assert derive_host(NetworkConfig(bookie_id="bookie-0"), Network()) == "10.0.0.7"
    assert derive_host(NetworkConfig(bookie_id="x", advertised_address="dns"), Network()) == "dns"


def test_loopback_needs_leave() -> None:
    with pytest.raises(InvalidConfiguration, match=r"127\.0\.1\.1.*allowLoopback=true"):
        derive_bookie_id(NetworkConfig(), Network("127.0.1.1"))
    allowed = NetworkConfig(allow_loopback=True)
    assert derive_bookie_id(allowed, Network("127.0.0.1")) == "127.0.0.1:3181"


@pytest.mark.parametrize(
    ("options", "network", "message"),
    [
        (NetworkConfig(bookie_id="a/b"), Network(), "bookie id"),
        (NetworkConfig(bookie_id="ReadOnly"), Network(), "bookie id"),
        (NetworkConfig(advertised_address="a b"), Network(), "bookie id"),
        (NetworkConfig(listening_interface="eth9"), Network(), "listeningInterface=eth9 has no IPv4"),
        (NetworkConfig(), Network(""), "set advertisedAddress"),
        (NetworkConfig(use_host_name_as_bookie_id=True), Network(name=None), "no host"),
    ],
)
def test_refusals_name_the_key(options: NetworkConfig, network: Network, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as caught:
        derive_bookie_id(options, network)
    assert "\n" not in str(caught.value)


def test_candidates_are_all_ids_the_bookie_may_have_had() -> None:
    network = Network()
    assert candidate_bookie_ids(NetworkConfig(bookie_id="b"), network) == ("b",)
    assert candidate_bookie_ids(NetworkConfig(), network) == ("bookie-0.bk.svc:3181", "10.0.0.7:3181")
    advertised = NetworkConfig(advertised_address="dns")
    assert candidate_bookie_ids(advertised, network) == (
        "10.0.0.7:3181",
        "bookie-0.bk.svc:3181",
        "dns:3181",
    )
    assert candidate_bookie_ids(advertised, Network("")) == ("dns:3181",)
    assert candidate_bookie_ids(advertised, Network("127.0.0.1", None)) == ("127.0.0.1:3181", "dns:3181")


def test_the_real_host() -> None:
    network = HostNetwork()
    assert network.interface_address("lo") == "127.0.0.1"
    with pytest.raises(OSError, match="device"):
        network.interface_address("nosuch0")
    with pytest.raises(InvalidConfiguration, match="allowLoopback"):
        derive_bookie_id(NetworkConfig(listening_interface="lo"))


def test_published_endpoints() -> None:
    golden = (
        "32210a0a687474707365727665721094b9011a093132372e302e302e31220468747470"
        "32230a06626f6f6b696510bcff011a093132372e302e302e31220a626f6f6b69652d727063"
    )
    info = bookie_service_info("127.0.0.1", 32700, http_port=23700, http_host="0.0.0.0")
    assert encode_service_info(info).hex() == golden
    full = bookie_service_info("h", 3181, tls=True, http_port=8000, http_host="admin", http_tls=True)
    assert [endpoint.host for endpoint in full.endpoints] == ["admin", "h"]
    assert [endpoint.extensions for endpoint in full.endpoints] == [("tls",), ("tls",)]
    assert dict(bookie_service_info("h", 3181, network_location="/a/r1").properties) == {"networkLocation": "/a/r1"}
    assert bookie_service_info("h", 3181).endpoints == (Endpoint("bookie", "h", 3181, "bookie-rpc"),)
