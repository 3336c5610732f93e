"""The id of this bookie and its address, out of configuration and network.

The id, first match wins: `bookieId`; `advertisedAddress:port`; with `useHostNameAsBookieID` the canonical
host name (cut at its first dot with `useShortHostName`) and port; else the IP address of
`listeningInterface` (default: what the host's own name resolves to) and port. A loopback address is refused
unless `allowLoopback`.

Invariant: the address that is published follows the same rules without `bookieId`. Every refusal is
`InvalidConfiguration`, one line with the key to set.

Any thread; name look-ups may block.

Sources: docs/internals/metadata-layout.md, sections 4.2 and 5.5 (candidate ids).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from typing import Final

from bookie_pod.config.sections.network import NetworkConfig
from bookie_protocol.addresses import EVERY_ADDRESS
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.service_info import (
    BOOKIE_RPC,
    BookieServiceInfo,
    Endpoint,
    is_valid_bookie_id,
)

_SIOCGIFADDR: Final = 0x8915


class HostNetwork:
    """The data of this host (Linux) about itself. Each method may raise `OSError`."""

    def interface_address(self, name: str) -> str:
        """Return the IPv4 address of a network interface."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])

    def default_address(self) -> str:
        """Return the IP address that the host's own name stands for."""
        # The resolver's first choice: IPv4 where the host has both.
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])

    def canonical_name(self, address: str) -> str:
        """Return the host name of an address, by reverse look-up."""
        return socket.gethostbyaddr(address)[0]


def derive_bookie_id(options: NetworkConfig, network: HostNetwork | None = None) -> str:
    """The bookie's id. Raises `InvalidConfiguration`."""
    if options.bookie_id:
        return _checked(options.bookie_id, "bookieId")
    return _checked(f"{derive_host(options, network)}:{options.bookie_port}", "advertisedAddress or the host's name")


def derive_host(options: NetworkConfig, network: HostNetwork | None = None) -> str:
    """Return the host under which clients reach this bookie. Raises `InvalidConfiguration`."""
    if options.advertised_address:
        return options.advertised_address
    network = network or HostNetwork()
    address = _local_address(options, network)
    if not options.use_host_name_as_bookie_id:
        return address
    return _host_name(address, options.use_short_host_name, network)


def candidate_bookie_ids(options: NetworkConfig, network: HostNetwork | None = None) -> tuple[str, ...]:
    """Every id under which this bookie may have stamped a cookie before; its present one comes last."""
    present = derive_bookie_id(options, network)
    if options.bookie_id:
        return (present,)
    network = network or HostNetwork()
    candidates: list[str] = []
    try:
        address = _raw_address(options, network)
        candidates.append(f"{address}:{options.bookie_port}")
        candidates.append(f"{_host_name(address, options.use_short_host_name, network)}:{options.bookie_port}")
    except (OSError, InvalidConfiguration):
        pass  # an address that this host cannot find out was not its id either
    candidates.append(present)
    return tuple(dict.fromkeys(reversed(candidates)))[::-1]


def bookie_service_info(
    host: str,
    port: int,
    *,
    tls: bool = False,
    http_port: int | None = None,
    http_host: str | None = None,
    http_tls: bool = False,
    network_location: str | None = None,
) -> BookieServiceInfo:
    """Return the data that the bookie publishes: its own HTTP endpoint, if it serves one, and its network location."""
    endpoints: list[Endpoint] = []
    if http_port is not None:
        http = host if http_host is None or http_host in EVERY_ADDRESS else http_host
        encrypted = ("tls",) if http_tls else ()
        endpoints.append(Endpoint("httpserver", http, http_port, "http", extensions=encrypted))
    endpoints.append(Endpoint("bookie", host, port, BOOKIE_RPC, extensions=("tls",) if tls else ()))
    properties = {} if network_location is None else {"networkLocation": network_location}
    return BookieServiceInfo(tuple(endpoints), properties)


def _raw_address(options: NetworkConfig, network: HostNetwork) -> str:
    if options.listening_interface and options.listening_interface != "default":
        return network.interface_address(options.listening_interface)
    return network.default_address()


def _local_address(options: NetworkConfig, network: HostNetwork) -> str:
    try:
        address = _raw_address(options, network)
    except OSError as error:
        if options.listening_interface:
            what = f"listeningInterface={options.listening_interface} has no IPv4 address"
        else:
            what = "the host's own name does not resolve to an address"
        raise InvalidConfiguration(
            f"{what} ({error.strerror or error}); set advertisedAddress, or listeningInterface to one of this host"
        ) from error
    if ipaddress.ip_address(address).is_loopback and not options.allow_loopback:
        raise InvalidConfiguration(
            f"the bookie would advertise the loopback address {address}, which no other host can reach; set "
            "advertisedAddress or listeningInterface, or allowLoopback=true for a single machine"
        )
    return address


def _host_name(address: str, short: bool, network: HostNetwork) -> str:
    try:
        name = network.canonical_name(address)
    except OSError as error:
        raise InvalidConfiguration(
            f"useHostNameAsBookieID=true, but {address} has no host name ({error.strerror or error}); add it to DNS or "
            "/etc/hosts, or set advertisedAddress"
        ) from error
    return name.split(".", 1)[0] if short else name


def _checked(bookie_id: str, key: str) -> str:
    if not is_valid_bookie_id(bookie_id):
        raise InvalidConfiguration(
            f"{bookie_id!r} is not a valid bookie id (from {key}): use letters, digits, ':', '_', '.' and '-', and not "
            "the word 'readonly' or dots alone"
        )
    return bookie_id
