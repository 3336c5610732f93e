"""Names of a cluster's objects, pods and bookies.

Invariants
- Every name is a DNS label of at most 63 characters for every cluster name of at most 40: a StatefulSet's is at most
  52 long, because its pods bear a label of its name and a revision.
- A name depends on the cluster's name and the zone's alone, never on their order or number.
- No two clusters have a name in common: what a name ends with is never the end of another that follows a dash.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container
from typing import Final

BOOKIE_PORT: Final = 3181
GRPC_PORT: Final = 3182
HTTP_PORT: Final = 8000
METADATA_PORT: Final = 2281
ETCD_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380
ETCD_METRICS_PORT: Final = 2381

BOOKIE: Final = "bookie"
AUTORECOVERY: Final = "autorecovery"
GATEWAY: Final = "gateway"
METADATA: Final = "metadata"
METADATA_INIT: Final = "metadata-init"
BACKUP: Final = "backup"
METADATA_DESTROY: Final = "metadata-destroy"

JOURNAL: Final = "journal"
LEDGER: Final = "ledger"
INDEX: Final = "index"

_STATEFUL_SET_LENGTH: Final = 52
_DIGITS: Final = 4
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_OF_OTHERS: Final = re.compile(r"(^|-)(bookie|metadata)(-|$)")
"""Part of a zone's name with which the StatefulSet would have the name of another cluster's."""


def bookies(cluster: str) -> str:
    """Headless Service, budget, NetworkPolicy, service account, alerts and, without zones, StatefulSet of bookies."""
    return f"{cluster}-bookie"


def client_service(cluster: str) -> str:
    return f"{cluster}-client"


def autorecovery(cluster: str) -> str:
    return f"{cluster}-autorecovery"


def gateway(cluster: str) -> str:
    """Deployment, Service, budget and NetworkPolicy of gateways that run by themselves."""
    return f"{cluster}-gateway"


def metadata(cluster: str) -> str:
    return f"{cluster}-metadata"


def egress(cluster: str) -> str:
    """NetworkPolicy of what the cluster's pods reach."""
    return f"{cluster}-egress"


def metadata_init(cluster: str) -> str:
    return f"{cluster}-metadata-init"


def metadata_check(cluster: str) -> str:
    return f"{cluster}-metadata-check"


def metadata_destroy(cluster: str) -> str:
    return f"{cluster}-metadata-destroy"


def backup(cluster: str) -> str:
    """CronJob that backs the metadata up, and the claim that the operator makes for the files."""
    return f"{cluster}-backup"


def identity(cluster: str) -> str:
    return f"{cluster}-identity"


def admin_token(cluster: str) -> str:
    """Secret with the bearer token of the pods' admin API, under the key `token`."""
    return f"{cluster}-admin-token"


def client_token(cluster: str) -> str:
    """Secret with the bearer tokens that clients of gRPC show, under the key `token`."""
    return f"{cluster}-client-token"


def metadata_token(cluster: str) -> str:
    """Secret with the bearer tokens of the embedded metadata service, under the key `token`."""
    return f"{cluster}-metadata-token"


def metadata_certificate(cluster: str) -> str:
    """Secret with the certificate of a metadata service that the operator runs."""
    return f"{cluster}-metadata-tls"


def metadata_client(cluster: str) -> str:
    """Secret with the certificate that clients show to the etcd that the operator runs."""
    return f"{cluster}-metadata-client"


def admin_certificate(cluster: str) -> str:
    """Secret with the certificate of the pods' admin API that the operator makes."""
    return f"{cluster}-admin-tls"


def admin_issued(cluster: str) -> str:
    """Certificate of cert-manager for the pods' admin API, and the Secret that it fills."""
    return f"{cluster}-admin-issued"


def admin_authority(cluster: str) -> str:
    """Secret with the authority that signs what the operator makes: the operator's alone."""
    return f"{cluster}-admin-ca"


def config(cluster: str, config_hash: str) -> str:
    return f"{cluster}-config-{config_hash[:10]}"


def settings(cluster: str) -> str:
    """ConfigMap of what a bookie takes at its next start without being restarted for it."""
    return f"{cluster}-bookie-settings"


def certificate(cluster: str) -> str:
    """Certificate of cert-manager, and the Secret that it fills."""
    return f"{cluster}-bookie-tls"


def stateful_set(cluster: str, zone: str = "", recorded: Container[str] = ()) -> str:
    """`CLUSTER-bookie`, with zones `CLUSTER-bookie-ZONE`; a zone that makes no label or too long a name, or that of
    another cluster's StatefulSet, is cut, and the digits of its hash make it distinct.

    `recorded`: names that StatefulSets of it have, which they keep if another release gave them.
    """
    whole = f"{bookies(cluster)}-{zone}" if zone else bookies(cluster)
    is_label = len(whole) <= _STATEFUL_SET_LENGTH and _LABEL.fullmatch(whole) is not None
    if is_label and (whole in recorded or not _OF_OTHERS.search(zone)):
        return whole
    digits = hashlib.sha256(zone.encode()).hexdigest()[:_DIGITS]
    room = _STATEFUL_SET_LENGTH - len(bookies(cluster)) - len(digits) - 2
    start = re.sub(r"[^a-z0-9]+", "-", zone.lower()).strip("-")[: max(room, 0)].strip("-")
    plain, without = ("-".join(part for part in (bookies(cluster), each, digits) if part) for each in (start, ""))
    return plain if plain in recorded or not _OF_OTHERS.search(start) else without


def pod(set_name: str, ordinal: int) -> str:
    return f"{set_name}-{ordinal}"


def bookie_host_suffix(cluster: str, namespace: str, domain: str = "") -> str:
    """Return what follows the pod's name in the host name of a bookie; the search path of every pod completes it.

    `domain`: the end that the earlier configuration gave it, of bookies that were taken over in place.
    """
    return f".{admin_server_name(cluster, namespace)}{domain and f'.{domain}'}"


def admin_server_name(cluster: str, namespace: str) -> str:
    """Return the name that the certificate of every pod's admin API has, whichever pod it is."""
    return f"{bookies(cluster)}.{namespace}.svc"


def bookie_id_suffix(cluster: str, namespace: str, domain: str = "") -> str:
    return f"{bookie_host_suffix(cluster, namespace, domain)}:{BOOKIE_PORT}"


def claim_template(kind: str, index: int) -> str:
    return f"{kind}-{index}"


def claim(template: str, pod_name: str) -> str:
    return f"{template}-{pod_name}"
