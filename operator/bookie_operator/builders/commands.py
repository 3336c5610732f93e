"""Commands of the image that the pods run, and where they are asked how they are.

The image's entry point is `bookie`. A test holds these against the command line of this release.

Threads: constants and pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.builders import config, in_place, naming
from bookie_operator.builders.metadata_uri import is_protected, metadata_host, metadata_service_uri
from bookie_operator.world.model import ClusterView

SERVE: Final = ("serve",)
AUTORECOVERY: Final = ("autorecovery",)
GATEWAY: Final = ("gateway",)
METADATA_DIRECTORY: Final = "/data/metadata"
_METADATA_FILES: Final = {"token-file": config.TOKEN_KEY, "tls-certificate": "tls.crt", "tls-key": "tls.key"}
METADATA_GUARDS: Final = tuple(
    word for option, file in _METADATA_FILES.items() for word in (f"--{option}", f"{config.METADATA_DIRECTORY}/{file}")
)

BACKUPS: Final = "/backups"
"""Folder of the backups of the metadata, on the volume for them."""

ALIVE: Final = "/healthz"
READY: Final = "/readyz"

_LONGEST_DRAIN_SECONDS: Final = 60
TERMINATION_LOG: Final = "/dev/termination-log"
_WAIT_SECONDS: Final = 120
_INITIALISE: Final = f"""\
bookie cluster init --if-absent --wait {_WAIT_SECONDS} --instance-id "$1" --json "$0" >/tmp/cluster.json
cat /tmp/cluster.json
sed -n 's/.*"instance_id": *"\\([^"]*\\)".*/\\1/p' /tmp/cluster.json >{TERMINATION_LOG}
"""

_LOOK: Final = f"""\
bookie cluster status --no-ledgers --json >/tmp/cluster.json || test -s /tmp/cluster.json
cat /tmp/cluster.json
sed -n 's/.*"instance_id": *"\\([^"]*\\)".*"writable": *\\([0-9]*\\), *"read-only": *\\([0-9]*\\).*/\\1 \\2 \\3/p' \
  /tmp/cluster.json >{TERMINATION_LOG}
"""


def metadata_service(cluster: ClusterView) -> list[str]:
    """Return the arguments of the embedded metadata service.

    Clients of Oxia go on to the address that it tells them. By default that is the name of the pod alone, which others
    cannot look up, and which its certificate does not have.
    """
    port = str(naming.METADATA_PORT)
    address = ["--oxia-address", f"{metadata_host(cluster)}:{port}"]
    guards = METADATA_GUARDS if is_protected(cluster) else ()
    return ["metadata-service", "--data", METADATA_DIRECTORY, "--port", port, *address, *guards]


def stop(grace_seconds: int) -> list[str]:
    """The command of a bookie's preStop hook, and so with the program: it registers as read-only and flushes.
    SIGTERM follows, for which half of the time is left, or more."""
    return ["bookie", "drain-clients", "--timeout", str(min(_LONGEST_DRAIN_SECONDS, grace_seconds // 2))]


def initialise(cluster: ClusterView) -> list[str]:
    """Makes the cluster unless it is there; its termination message is the instance id. With the program.

    A cluster that is made has the UID of its resource as its instance id: so everybody can tell whose the root is.
    """
    return ["/bin/sh", "-ec", _INITIALISE, metadata_service_uri(cluster), cluster.uid]


def look() -> list[str]:
    """Tells the instance id of the cluster at `BK_metadataServiceUri`, and how many writable and read-only bookies are
    registered there, as its termination message. With the program, which fails too where no bookie is writable."""
    return ["/bin/sh", "-ec", _LOOK]


_BACK_UP: Final = f"""\
bookie cluster metadata backup "$0" {BACKUPS} --keep "$1" --json >/tmp/backup.json
cat /tmp/backup.json
sed -n 's/.*"ledgers": *\\([0-9]*\\).*"file": *"\\([^"]*\\)".*/\\1 \\2/p' /tmp/backup.json >{TERMINATION_LOG}
"""


def back_up(cluster: ClusterView, keep: int) -> list[str]:
    """Write a backup, then remove old ones. Its termination message is the number of ledgers and the path. With the
    program."""
    return ["/bin/sh", "-ec", _BACK_UP, metadata_service_uri(cluster), str(keep)]


def destroy(cluster: ClusterView) -> list[str]:
    """Return the arguments that remove the cluster's metadata, including those of ledgers.

    The command refuses if the instance id is not the one in `status`, or if bookies of another cluster use the root. It
    fails where no cluster is: an empty service, which may have lost its disk, does not say whether others use the root.
    """
    root = cluster.spec.metadata_service.root_path
    known = ["--instance-id", cluster.status.instance_id] if cluster.status.instance_id else []
    known += ["--bookie-suffix", in_place.id_suffix(cluster)]
    return [
        "cluster", "nuke", "--root", root, *known, "--force", "--confirm", metadata_service_uri(cluster)
    ]  # fmt: skip
