"""The keys of a bookie's configuration as the bookie declares them, and those that the operator sets.

Invariants
- A value is judged here by its own key alone: the bookie judges what needs several keys, or the pod's memory.
- A message names keys and rules, never values: some are secrets.

Threads: values that are read once, for any thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from bookie_pod.config.ignored import is_ignored as is_ignored
from bookie_pod.config.keys import BadValueError, Key, parse, read_bool
from bookie_pod.config.model import all_keys

RESERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "journalDirectories": "use spec.storage.journal",
        "journalDirectory": "use spec.storage.journal",
        "ledgerDirectories": "use spec.storage.ledger",
        "indexDirectories": "use spec.storage.index",
        "metadataServiceUri": "use spec.metadataService",
        "zkServers": "use spec.metadataService.uri",
        "zkLedgersRootPath": "use spec.metadataService.rootPath",
        "bookieId": "it is the name of the pod",
        "bookiePort": "it is always 3181",
        "advertisedAddress": "it is the name of the pod",
        "useHostNameAsBookieID": "the bookie id is the name of the pod",
        "useShortHostName": "the bookie id is the name of the pod",
        "listeningInterface": "bookies listen on all interfaces of their pod",
        "allowLoopback": "bookies listen on all interfaces of their pod",
        "allowEphemeralPorts": "ports are fixed",
        "networkLocation": "use spec.placement.zones",
        "httpServerEnabled": "probes and the operator need it",
        "httpServerHost": "probes and the operator need it",
        "httpServerPort": "it is always 8000",
        "httpServerAuthTokenFile": "the operator makes the token",
        "httpServerAuthProbes": "the kubelet sends no token",
        "httpServerTlsEnable": "use spec.tls.adminApi",
        "httpServerTlsClientAuthentication": "probes have no certificate; the token tells who may ask",
        "httpServerCertificatePath": "use spec.tls.adminApi",
        "httpServerKeyStorePath": "use spec.tls.adminApi",
        "httpServerTrustStorePath": "use spec.tls.adminApi",
        "prometheusStatsHttpEnable": "metrics are on the HTTP port",
        "prometheusStatsHttpPort": "metrics are on the HTTP port",
        "grpcServerHost": "bookies listen on all interfaces of their pod",
        "grpcServerPort": "it is always 3182",
        "autoRecoveryDaemonEnabled": "use spec.autorecovery.enabled",
        "lostBookieRecoveryDelay": "use spec.autorecovery.lostBookieRecoveryDelaySeconds",
        "persistBookieStatusEnabled": "a bookie that is drained has to stay read-only over a restart",
        "forceReadOnlyBookie": "create a BookieTask of type Decommission",
        "readOnlyModeEnabled": "a bookie with full disks has to stay up for readers",
        "minNumZonesPerWriteQuorum": "use spec.placement.minZonesPerWriteQuorum",
        "tlsProviderFactoryClass": "use spec.tls",
        "tlsKeyStoreType": "use spec.tls",
        "tlsKeyStore": "use spec.tls",
        "tlsTrustStoreType": "use spec.tls",
        "tlsTrustStore": "use spec.tls",
        "tlsCertificatePath": "use spec.tls",
    }
)
"""Keys that the operator sets, with what to do instead."""


@cache
def known_keys() -> Mapping[str, tuple[str, Key]]:
    """Every key by each of its names, older ones too: the annotation of its field, and its declaration."""
    return MappingProxyType({name: (annotation, key) for name, (_, _, annotation, key) in all_keys().items()})


def fault(name: str, text: str) -> str:
    """The rule of this known key that the text breaks, or nothing. An empty text is the default, as in the bookie."""
    if text.strip():
        try:
            parse(known_keys()[name][1], known_keys()[name][0], text)
        except BadValueError as error:
            return str(error)
    return ""


def switched(text: str) -> bool | None:
    """Return the meaning of a switch's text. None: it is neither true nor false."""
    try:
        return read_bool(text)
    except BadValueError:
        return None


def nearest(name: str) -> str | None:
    """The known key whose spelling is nearest; None: no key is near."""
    folded = {known.lower(): known for known in known_keys()}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def dynamic_part(config: Mapping[str, str]) -> dict[str, str]:
    """The keys of `spec.config` that running bookies take without a restart, under their present names."""
    known = known_keys()
    return {known[name][1].name: text for name, text in config.items() if name in known and known[name][1].dynamic}


def static_part(config: Mapping[str, str]) -> dict[str, str]:
    """All other keys of `spec.config`, as they are written: a change of one takes a restart."""
    known = known_keys()
    return {name: text for name, text in config.items() if not (name in known and known[name][1].dynamic)}
