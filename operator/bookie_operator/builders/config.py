"""The configuration file of a cluster's bookies: what `spec.config` says, and what the operator sets.

Three kinds of keys
- static: they are in the file. The file is in an immutable ConfigMap whose name bears the hash of its content, so
  another content is another name, another pod template, and a rolling restart; a pod that is restarted meanwhile finds
  the file that it began with.
- for the next start: see `settings`. They are in a ConfigMap of constant name that pods take as environment variables,
  which win over the file.
- of one pod: address, bookie id and zone. They are environment variables of its template.

Invariants
- A key that the operator sets is never taken from `spec.config`; its defaults are, where a user has no say.
- A key is in one of the three places only, older names counted.

Format: a Java properties file, as Apache BookKeeper's `bk_server.conf`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from bookie_operator.builders import in_place, naming, settings
from bookie_operator.builders.common import Manifest, content_hash, manifest
from bookie_operator.builders.metadata_uri import is_etcd, is_protected, metadata_service_uri
from bookie_operator.builders.zones import spreads_over_zones
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.config_keys import RESERVED, static_part, switched
from bookie_operator.world.model import ClusterView

FILE: Final = "bookie.conf"
DIRECTORY: Final = "/etc/podkeeper/config"
PATH: Final = f"{DIRECTORY}/{FILE}"
TOKEN_DIRECTORY: Final = "/etc/podkeeper/admin"
TOKEN_KEY: Final = "token"
CLIENT_TOKEN_DIRECTORY: Final = "/etc/podkeeper/client"
TLS_DIRECTORY: Final = "/etc/podkeeper/tls"
ADMIN_TLS_DIRECTORY: Final = "/etc/podkeeper/admin-tls"
METADATA_DIRECTORY: Final = "/etc/podkeeper/metadata"
_METADATA_TLS: Final = {
    "metadataServiceTlsEnable": "true",
    "metadataServiceTrustStorePath": f"{METADATA_DIRECTORY}/ca.crt",
}
_METADATA_TOKEN: Final = {"metadataServiceTokenFile": f"{METADATA_DIRECTORY}/{TOKEN_KEY}"}
_METADATA_CERTIFICATE: Final = {
    "metadataServiceCertificatePath": f"{METADATA_DIRECTORY}/tls.crt",
    "metadataServiceKeyPath": f"{METADATA_DIRECTORY}/tls.key",
}

_CLIENT_TOKENS: Final = "grpcServerAuthTokenFile"
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_KEY_SPECIAL: Final = re.compile(r"[\\=: \t\f\n\r#!]")
_UNESCAPED: Final = {escaped: character for character, escaped in _ESCAPES.items()}
_ESCAPED: Final = re.compile(r"\\(.)")
_LINE: Final = re.compile(r"((?:\\.|[^\\=])*)=(.*)")


def metadata_files(cluster: ClusterView) -> dict[str, str]:
    """Return the keys by which a metadata service that the operator runs is reached; options of Spark jobs, too."""
    if is_etcd(cluster):
        return {**_METADATA_TLS, **_METADATA_CERTIFICATE}
    return {**_METADATA_TLS, **_METADATA_TOKEN} if is_protected(cluster) else {}


def directories(spec: BookieClusterSpec) -> dict[str, str]:
    """Directories by key. DbLedgerStorage wants an index directory for each ledger directory, so several of them share
    a volume if there are fewer index volumes."""
    storage = spec.storage
    keys = {
        "journalDirectories": ",".join(in_place.directories(spec, naming.JOURNAL, storage.journal.volumes)),
        "ledgerDirectories": ",".join(in_place.directories(spec, naming.LEDGER, storage.ledger.volumes)),
    }
    if storage.index is not None:
        mounts = [in_place.mount_path(spec, naming.INDEX, index) for index in range(storage.index.volumes)]
        paths = [f"{mounts[i % len(mounts)]}/ledger-{i}" for i in range(storage.ledger.volumes)]
        keys["indexDirectories"] = ",".join(paths)
    return keys


def operator_keys(cluster: ClusterView) -> dict[str, str]:
    """Keys that follow from other parts of `spec`: `spec.config` cannot set them."""
    spec = cluster.spec
    keys = {
        **directories(spec),
        "metadataServiceUri": metadata_service_uri(cluster),
        "bookiePort": str(naming.BOOKIE_PORT),
        "grpcServerPort": str(naming.GRPC_PORT),
        "httpServerEnabled": "true",
        "httpServerPort": str(naming.HTTP_PORT),
        "httpServerHost": "0.0.0.0",
        "httpServerAuthTokenFile": f"{TOKEN_DIRECTORY}/{TOKEN_KEY}",
        "autoRecoveryDaemonEnabled": "false",
        "persistBookieStatusEnabled": "true",
    }
    if spreads_over_zones(spec):
        least = spec.placement.min_zones_per_write_quorum
        keys["minNumZonesPerWriteQuorum"] = str(least)
    if spec.tls.admin_api.enabled:
        keys |= {
            "httpServerTlsEnable": "true",
            "httpServerTlsClientAuthentication": "false",  # probes have none
            "httpServerCertificatePath": f"{ADMIN_TLS_DIRECTORY}/tls.crt",
            "httpServerKeyStorePath": f"{ADMIN_TLS_DIRECTORY}/tls.key",
            "httpServerTrustStorePath": f"{ADMIN_TLS_DIRECTORY}/ca.crt",
        }
    if spec.tls.enabled:
        keys |= {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": f"{TLS_DIRECTORY}/tls.key",
            "tlsCertificatePath": f"{TLS_DIRECTORY}/tls.crt",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": f"{TLS_DIRECTORY}/ca.crt",
        }
    return keys


def default_keys(cluster: ClusterView) -> dict[str, str]:
    """Keys that the operator sets unless `spec.config` does."""
    spec, given = cluster.spec, cluster.spec.config
    keys: dict[str, str] = {}
    gateway = switched(given.get("grpcServerEnabled", "")) is not False
    if (budget := settings.memory_budget_mb(spec.pod.resources, gateway=gateway)) is not None:
        keys["memoryBudgetMb"] = str(budget)
    if "diskUsageThreshold" not in given:
        keys["diskUsageLwmThreshold"] = "0.92"  # else a disk that is nearly full makes the mode change to and fro
    if spreads_over_zones(spec):
        least = spec.placement.min_zones_per_write_quorum
        keys |= {
            "ensemblePlacementPolicy": "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy",
            "minNumRacksPerWriteQuorum": str(max(2, least)),
            "enforceMinNumRacksPerWriteQuorum": str(least > 1).lower(),
        }
    if demands_client_token(cluster):
        keys[_CLIENT_TOKENS] = f"{CLIENT_TOKEN_DIRECTORY}/{TOKEN_KEY}"
    if spec.tls.enabled:
        keys |= {"tlsRequired": "true", "tlsCertFilesRefreshDurationSeconds": "300", "grpcServerTlsEnable": "true"}
        if spec.tls.issuer_ref is not None:  # a certificate of the user may name other hosts
            keys["tlsHostnameVerificationEnabled"] = "true"
    return keys


def demands_client_token(cluster: ClusterView) -> bool:
    """Return whether the gRPC port demands a token of the operator's.

    It does unless `spec.config` says who may use it, or that all may.
    """
    given = cluster.spec.config
    otherwise = (switched(given.get(key, "")) for key in ("grpcServerTlsClientAuthentication", "allowInsecureAccess"))
    return _CLIENT_TOKENS not in given and not any(otherwise)


def logging_keys(cluster: ClusterView) -> dict[str, str]:
    """Return the keys of `spec.logging`; those that it leaves out come from `spec.config` or the process."""
    logging = cluster.spec.logging
    given = {"logLevel": logging.level, "logFormat": logging.format}
    return {key: text for key, text in given.items() if text is not None}


def static_keys(cluster: ClusterView) -> dict[str, str]:
    """Return all keys of the file."""
    given = {key: text for key, text in static_part(cluster.spec.config).items() if key not in RESERVED}
    metadata = metadata_files(cluster)
    return {**default_keys(cluster), **given, **logging_keys(cluster), **metadata, **operator_keys(cluster)}


_HEADER: Final = "# Written by the operator: change spec.config of the BookieCluster instead."


def properties(keys: Mapping[str, str], header: str = _HEADER) -> str:
    """A Java properties file, sorted by key."""
    lines = [f"{_escaped_key(key)}={_escaped_value(text)}" for key, text in sorted(keys.items())]
    return "\n".join((header, *lines, ""))


def _escaped_key(key: str) -> str:
    return _KEY_SPECIAL.sub(lambda match: _ESCAPES.get(match[0], f"\\{match[0]}"), key)


def _escaped_value(text: str) -> str:
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def changed_keys(before: str, after: str) -> tuple[str, ...]:
    """Keys that only one of two files of `properties` has, or that have another value in it; sorted."""
    old, new = _written_values(before), _written_values(after)
    changed = (key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return tuple(sorted(_ESCAPED.sub(lambda match: _UNESCAPED.get(match[0], match[1]), key) for key in changed))


def _written_values(file: str) -> dict[str, str]:
    """Key to value, both as they are escaped."""
    found = map(_LINE.fullmatch, file.split("\n"))
    return {line[1]: line[2] for line in found if line is not None}


def config_map(cluster: ClusterView) -> Manifest:
    """The file, under a name that bears its hash; its content never changes."""
    content = {FILE: properties(static_keys(cluster))}
    name = naming.config(cluster.name, content_hash(content))
    return manifest(cluster, "v1", "ConfigMap", name, naming.BOOKIE, {"immutable": True, "data": content})
