"""Parsing `metadataServiceUri`.

    zk+hierarchical://zk1:2181;zk2:2181/ledgers     ZooKeeper; layouts null (also plain zk://), flat, hierarchical,
                                                    longhierarchical. The path is the cluster's root; what is called
                                                    a chroot elsewhere is simply its first part
    metadata-store:zk:zk1:2181,zk2:2181/chroot      the same ZooKeeper in Apache Pulsar's words, in which the root is
                                                    always `ledgers` below the chroot, if there is one
    etcd://etcd1:2379,etcd2:2379/podkeeper          etcd. The path is the cluster's root: all its keys begin with it
    metadata-store:oxia://oxia1:6648/namespace?...  Oxia, as Apache Pulsar 4 and 5 write it. The root is always
                                                    `/ledgers` in the namespace, which is `default` if none is named
    oxia://oxia1:6648,oxia2:6648/namespace/ledgers  the same with a root of one's own behind the namespace
    embedded://host:port/ledgers                    a store that another process serves
    /var/lib/podkeeper/metadata                     a store in this folder, owned by this process (also file:///...)

Pure; any thread.

Sources: docs/internals/metadata-layout.md, section 2.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.options import DEFAULT_ROOT, MetadataDriver, MetadataServiceUri
from bookie_protocol.shown import one_line, shown_uri

_ZOOKEEPER_PORT: Final = 2181
_ETCD_PORT: Final = 2379
_OXIA_PORT: Final = 6648
_OXIA_NAMESPACE: Final = "default"
_PULSAR_SCHEME: Final = "metadata-store:"
_SESSION_TIMEOUT: Final = "sessionTimeoutMillis"
_CLIENT_FILE: Final = "configFilePath"
_OF_PULSARS_CLIENT: Final = (
    "allowReadOnlyOperations",
    "batchingEnabled",
    "batchingMaxDelayMillis",
    "batchingMaxOperations",
    "batchingMaxSizeKb",
    "fsyncEnable",
    "numSerDesThreads",
)
"""Parameters of Apache Pulsar's client of Oxia that mean nothing here, so that one URI serves both."""

_LAYOUTS: Final[dict[str, LedgerLayout | None]] = {
    "null": None,
    "flat": LedgerLayout.FLAT,
    "hierarchical": LedgerLayout.HIERARCHICAL,
    "longhierarchical": LedgerLayout.LONG_HIERARCHICAL,
}
_MOST_DIGITS: Final = 12
_QUERY: Final = re.compile(r"[?#].*", re.DOTALL)
_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://(?P<authority>[^/]*)(?P<path>/.*)?")


def parse_metadata_service_uri(text: str) -> MetadataServiceUri:
    """Parse a URI. Raises `InvalidConfiguration`, which names the fault and the right form."""
    text = text.strip()
    try:
        text.encode()
    except UnicodeError:
        raise _invalid(text, "it is not valid UTF-8") from None
    if text.startswith("/"):
        return MetadataServiceUri(MetadataDriver.OWNED, DEFAULT_ROOT, folder=text)
    if text.startswith(_PULSAR_SCHEME):
        return _pulsar_uri(text)
    match = _URI.fullmatch(text)
    if match is None:
        raise _invalid(text, "it has no scheme; write for example zk+null://zk1:2181;zk2:2181/ledgers")
    scheme, _, variant = match["scheme"].lower().partition("+")
    if scheme == "oxia" and not variant:
        return _oxia_uri(text, text[match.end("scheme") :].removeprefix("://"))
    authority, path = match["authority"], match["path"] or ""
    if scheme != "file" and _QUERY.search(text):
        raise _invalid(text, "it has a query")
    if scheme == "file":
        if authority or not path.rstrip("/"):
            raise _invalid(text, "write file:///<folder>, or the folder alone")
        return MetadataServiceUri(MetadataDriver.OWNED, DEFAULT_ROOT, folder=path)
    if scheme == "embedded" and not variant:
        hosts = _hosts(text, authority, None)
        if len(hosts) != 1:
            raise _invalid(text, "an embedded store is served by one host; write embedded://<host>:<port>/ledgers")
        return MetadataServiceUri(MetadataDriver.SERVED, _root(text, path), hosts=hosts)
    if scheme == "etcd" and not variant:
        hosts = _hosts(text, authority, _ETCD_PORT)
        return MetadataServiceUri(MetadataDriver.ETCD, _root(text, path), hosts=hosts)
    if scheme == "zk":
        layout = _layout(text, variant)
        hosts = _hosts(text, authority, _ZOOKEEPER_PORT)
        return MetadataServiceUri(MetadataDriver.ZOOKEEPER, _root(text, path), layout, hosts)
    raise _invalid(text, f"no driver for {match['scheme']}://; use zk://, etcd://, oxia:// or embedded://")


def _pulsar_uri(text: str) -> MetadataServiceUri:
    store = text.removeprefix(_PULSAR_SCHEME)
    if store.startswith("oxia://"):
        return _oxia_uri(text, store.removeprefix("oxia://"), only_namespace=True)
    if _QUERY.search(text):
        raise _invalid(text, "it has a query")
    if not store.startswith("zk:"):
        raise _invalid(
            text,
            f"of Pulsar's metadata stores ZooKeeper and Oxia are supported: {_PULSAR_SCHEME}zk:zk1:2181,"
            f" {_PULSAR_SCHEME}oxia://oxia1:6648/default",
        )
    authority, slash, chroot = store.removeprefix("zk:").removeprefix("//").partition("/")
    hosts = _hosts(text, authority, _ZOOKEEPER_PORT)
    below = _root(text, slash + chroot) if chroot else ""
    return MetadataServiceUri(MetadataDriver.ZOOKEEPER, below + DEFAULT_ROOT, None, hosts)


def _oxia_uri(text: str, rest: str, *, only_namespace: bool = False) -> MetadataServiceUri:
    place, _, query = rest.partition("?")
    if "@" in place or "#" in rest:
        raise _invalid(text, "it has a login, or a fragment")
    authority, _, path = place.partition("/")
    hosts = _hosts(text, authority, _OXIA_PORT)
    namespace, slash, root = path.rstrip("/").partition("/")
    given = _parameters(text, query)
    if slash and only_namespace:
        raise _invalid(text, "behind the hosts there is the namespace, and nothing else; the root is always /ledgers")
    return MetadataServiceUri(
        MetadataDriver.OXIA,
        _root(text, f"/{root}") if slash else DEFAULT_ROOT,
        None,
        hosts,
        namespace=namespace or _OXIA_NAMESPACE,
        session_seconds=_session_seconds(text, given),
        client_file=given.get(_CLIENT_FILE) or None,
    )


def _parameters(text: str, query: str) -> dict[str, str]:
    """Return the parameters that a query of Oxia names. Unknown ones are refused by their names."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    known_names = (_SESSION_TIMEOUT, _CLIENT_FILE, *_OF_PULSARS_CLIENT)
    unknown = sorted(given.keys() - set(known_names))
    if unknown:
        known = ", ".join(sorted(known_names))
        raise InvalidConfiguration(
            f"metadataServiceUri={shown_uri(text)} is refused: the parameter {one_line(unknown[0], 100)} is not known;"
            f" there are {known}"
        )
    return given


def _session_seconds(text: str, given: dict[str, str]) -> float | None:
    wanted = given.get(_SESSION_TIMEOUT)
    if wanted is None:
        return None
    milliseconds = _whole(wanted)
    if not milliseconds:
        raise InvalidConfiguration(
            f"metadataServiceUri={shown_uri(text)} is refused: {_SESSION_TIMEOUT} is not a positive whole number"
        )
    return milliseconds / 1000


def _layout(text: str, variant: str) -> LedgerLayout | None:
    name = variant or "null"
    if name not in _LAYOUTS:
        raise _invalid(text, f"unknown ledger layout {variant!r}; use one of {', '.join(_LAYOUTS)}")
    return _LAYOUTS[name]


def _root(text: str, path: str) -> str:
    root = path.rstrip("/")
    if not root:
        raise _invalid(text, f"it has no path; the usual one is {DEFAULT_ROOT}")
    if "//" in root or any(part in (".", "..") for part in root.split("/")):
        raise _invalid(text, f"{path!r} is not a valid path of a node")
    return root


def _hosts(text: str, authority: str, default_port: int | None) -> tuple[tuple[str, int], ...]:
    hosts = tuple(_host(text, item, default_port) for item in re.split("[;,]", authority) if item)
    if not hosts:
        raise _invalid(
            text,
            "it names no host; write zk+null://zk1:2181/ledgers, etcd://etcd1:2379/podkeeper, oxia://oxia1:6648/default"
            " or embedded://<host>:<port>/ledgers",
        )
    return hosts


def _host(text: str, item: str, default_port: int | None) -> tuple[str, int]:
    if "@" in item:
        raise _invalid(text, "it has a login")
    host, colon, port = ("", "", "") if item.endswith("]") else item.rpartition(":")
    try:
        (host or item).encode("idna")
    except UnicodeError as error:
        raise _invalid(text, f"no host can have the name {(host or item)!r}: {error}") from None
    if not colon:
        if default_port is None:
            raise _invalid(text, f"{item!r} lacks a port; write embedded://<host>:<port>/ledgers")
        return item, default_port
    number = _whole(port)
    if not host or not 0 < number < 65536:
        raise _invalid(text, f"{item!r} is not host:port")
    return host, number


def _whole(text: str) -> int:
    """Return the whole number, or 0 if the text is not a usable one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def _invalid(text: str, why: str) -> InvalidConfiguration:
    if "@" in text or _QUERY.search(text):
        why = "it names hosts and a root, and no user, password or query; keys of their own name the files with those"
    return InvalidConfiguration(f"metadataServiceUri={shown_uri(text)} is refused: {why}")
