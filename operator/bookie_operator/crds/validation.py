"""The validation of a `BookieCluster` in every pass, as far as its spec and status show faults.

The API server refuses most of it already (`rules`); here it is judged again, for a resource that was stored before a
rule was, and more that the rules cannot tell: keys of the configuration, downgrades, parts of pods.

Invariants
- Each message is one line: field, what is wrong, what to do.
- No message holds a value of `spec.config` or of an environment variable: some are secrets.
- Order and wording depend on the resource alone: the same resource gives the same messages.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec, BootstrapMode, MetadataServiceKind
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.config_keys import RESERVED, fault, is_ignored, known_keys, nearest, switched
from bookie_operator.crds.cron import schedule_fault
from bookie_operator.crds.pod_spec import Pod
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.crds.reading import bounded, known_part, known_status, parsed_spec, parsed_status
from bookie_operator.crds.rules import CLAIM_IN_PLACE, CLAIM_OF_A_POD, TIME_ZONE_PATTERN

_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"v?([0-9]{1,6})\.([0-9]{1,6})(?:[.+-].*)?")
_CLASS: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DIRECTORY: Final = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
_INTERVAL: Final = re.compile(r"[0-9]{1,9}(ms|s|m|h)")
_GATEWAY_KEYS: Final = (
    "grpcServerEnabled",
    "gatewayEnabled",
    "tlsClientAuthentication",
    "grpcServerTlsEnable",
    "grpcServerTlsClientAuthentication",
    "allowInsecureAccess",
)
_NEEDED: Final = frozenset({"operation", "operationsBegun", "instanceId", "recordedReplicas"})
"""Fields of the status on which decisions rest."""
_TOKENS: Final = "grpcServerAuthTokenFile"
_LOGINS: Final = "bookieAuthProviderFactoryClass"
_MEMBERS: Final = frozenset({1, 3, 5})
_LEAST_OF_ETCD: Final = 2**30
_URI: Final = re.compile(r"((zk(\+[a-z]+)?|etcd)://[^/@?#\s]+|oxia://[^/@?#\s]+/[^/@?#\s]+)/?")


def parse_spec(spec: Mapping[str, Any]) -> tuple[BookieClusterSpec | None, tuple[str, ...]]:
    """The typed spec; or None, and why it cannot be read."""
    return parsed_spec(BookieClusterSpec, spec, "docs/bookiecluster.md")


def known_spec(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the spec without fields of a newer definition; and a line for each of these."""
    return known_part(BookieClusterSpec, spec)


def readable_status(status: Mapping[str, Any], *, deleting: bool) -> tuple[Mapping[str, Any], str]:
    """Return the status without what is for people only and a newer operator wrote; and why it cannot be used, empty:
    it can.

    What an operation did has to be understood, or nothing may follow it but the deletion of the cluster.
    """
    kept, fault = known_status(BookieClusterStatus, status, _NEEDED)
    if fault and deleting and "operation" in kept:
        return known_status(BookieClusterStatus, {**kept, "operation": None}, _NEEDED)
    return kept, fault


def parse_status(status: Mapping[str, Any]) -> BookieClusterStatus:
    """The typed status, without what `readable_status` leaves out; an empty one stands for one that does not exist.
    Raises ValueError with one line for one that this operator cannot read: it must not be taken for an empty one,
    because it may hold an operation."""
    return parsed_status(BookieClusterStatus, readable_status(status, deleting=False)[0])


def validate(spec: BookieClusterSpec, status: BookieClusterStatus) -> tuple[str, ...]:
    """Return all faults, at most `MESSAGES`; empty: there are none."""
    return bounded(
        [
            *_metadata(spec),
            *_backup(spec),
            *_durability(spec),
            *_zones(spec),
            *_in_place(spec),
            *_sizes(spec),
            *_classes(spec),
            *_security(spec),
            *_twice(spec),
            *_gateway(spec),
            *_version(spec, status),
            *config_faults(spec.config),
            *pod_faults(spec.pod),
            *resource_faults("spec.autorecovery.resources", spec.autorecovery.resources),
            *resource_faults("spec.gateway.resources", spec.gateway.resources),
        ]
    )


# --- rules between fields ---------------------------------------------------------------------------------------------


def _metadata(spec: BookieClusterSpec) -> Iterator[str]:
    service = spec.metadata_service
    if service.type is MetadataServiceKind.EXTERNAL:
        if not _URI.fullmatch(service.uri):
            yield (
                "spec.metadataService.uri: an external metadata service needs a URI such as "
                "zk+hierarchical://zk-0:2181;zk-1:2181, etcd://etcd-0:2379,etcd-1:2379 or oxia://oxia:6648/NAMESPACE, "
                "without a path (that is rootPath) and without credentials"
            )
    elif service.uri:
        yield "spec.metadataService.uri: one that the operator runs has none; remove it, or set type: External"
    if service.type is MetadataServiceKind.ETCD:
        size = known_bytes(service.size)
        if size is not None and size < _LEAST_OF_ETCD:
            yield "spec.metadataService.size: must be 1Gi or more with type: Etcd, which keeps its log there too"
    if service.etcd.replicas not in _MEMBERS:
        yield "spec.metadataService.etcd.replicas: must be 1, 3 or 5; give one of them"
    yield from resource_faults("spec.metadataService.etcd.resources", service.etcd.resources)
    parts = service.root_path.split("/")[1:]
    if {"", ".", ".."} & set(parts) or parts[0] == "zookeeper":
        yield (
            "spec.metadataService.rootPath: must be a path without empty parts, . and .., and not ZooKeeper's own "
            "/zookeeper: for example /ledgers"
        )


def _backup(spec: BookieClusterSpec) -> Iterator[str]:
    backup = spec.backup
    if backup is None:
        return
    if fault := schedule_fault(backup.schedule):
        yield f"spec.backup.schedule: {fault}; write it as in a CronJob, as 0 * * * *, or one such as @daily"
    if not re.fullmatch(TIME_ZONE_PATTERN, backup.time_zone):
        yield "spec.backup.timeZone: must be a name of the time zone database, as Europe/Berlin"
    if backup.claim_name and not _CLASS.fullmatch(backup.claim_name):
        yield "spec.backup.claimName: must be a name that a PersistentVolumeClaim can have; correct it"
    found = spec.bootstrap.in_place
    templates = (found.journal.claim, found.ledger.claim) if found is not None else ()
    in_place = re.search(CLAIM_IN_PLACE, backup.claim_name) and backup.claim_name.startswith(
        tuple(f"{each}-" for each in templates)
    )
    if in_place or re.fullmatch(CLAIM_OF_A_POD, backup.claim_name):
        yield "spec.backup.claimName: it is the volume of a pod; name a claim that is for backups alone"
    yield from resource_faults("spec.backup.resources", backup.resources)


def _durability(spec: BookieClusterSpec) -> Iterator[str]:
    durability = spec.durability
    if durability.ack_quorum > durability.write_quorum:
        yield "spec.durability.ackQuorum: must not exceed writeQuorum; lower it"
    if durability.write_quorum > durability.ensemble_size:
        yield "spec.durability.writeQuorum: must not exceed ensembleSize; lower it"
    if spec.replicas < durability.ensemble_size:
        yield (
            f"spec.replicas: {spec.replicas} bookies are fewer than durability.ensembleSize "
            f"({durability.ensemble_size}): no ledger could be written; raise replicas or lower ensembleSize"
        )
    for name, number in (("update", spec.update.max_unavailable), ("disruption", spec.disruption.max_unavailable)):
        if number != 1 and number >= durability.ack_quorum:
            yield (
                f"spec.{name}.maxUnavailable: must be 1, or less than durability.ackQuorum "
                f"({durability.ack_quorum}): an acknowledged entry may be on that many bookies only; lower it"
            )


def _in_place(spec: BookieClusterSpec) -> Iterator[str]:
    found, storage = spec.bootstrap.in_place, spec.storage
    if found is None:
        return
    one_each = storage.journal.volumes == storage.ledger.volumes == 1 and storage.index is None
    if spec.bootstrap.mode is not BootstrapMode.ADOPT or not spec.bootstrap.instance_id:
        yield "spec.bootstrap.inPlace: set mode to Adopt, and instanceId to that of the bookies' cluster"
    if not one_each or len(spec.placement.zones) > 1:
        yield (
            "spec.bootstrap.inPlace: bookies that are taken over have one journal and one ledger volume each, and no "
            "zones; leave index volumes and zones out"
        )
    mounts = [posixpath.normpath(str(each.get("mountPath", ""))) for each in spec.pod.extra_volume_mounts]
    for kind, volume in (("journal", found.journal), ("ledger", found.ledger)):
        if any(f"{each}/".startswith(f"{volume.mount_path}/") for each in mounts):
            yield (
                f"spec.pod.extraVolumeMounts: one would hide the bookies' data on {volume.mount_path}; mount it "
                "elsewhere"
            )
        paths = [volume.mount_path, *volume.directories]
        on_it = all(f"{each}/".startswith(f"{volume.mount_path}/") for each in paths)
        if not _CLASS.fullmatch(volume.claim) or not on_it or not all(map(_DIRECTORY.fullmatch, paths)):
            yield (
                f"spec.bootstrap.inPlace.{kind}: must name a claim template, an absolute path where it is mounted, and "
                "directories on it, as in the old StatefulSet"
            )


def _zones(spec: BookieClusterSpec) -> Iterator[str]:
    zones, least = spec.placement.zones, spec.placement.min_zones_per_write_quorum
    given = [zone.replicas for zone in zones if zone.replicas is not None]
    names = [zone.name for zone in zones]
    for position, name in enumerate(names):
        if not _LABEL.fullmatch(name):
            yield f"spec.placement.zones[{position}].name: must be what a label of nodes can be, as eu-west-1a"
    if len(names) != len(set(names)):
        yield "spec.placement.zones: a zone is listed twice; list each zone once"
    if given and len(given) != len(zones):
        yield "spec.placement.zones: give replicas for every zone or for none"
    elif given and sum(given) != spec.replicas:
        yield (
            f"spec.placement.zones: their replicas add up to {sum(given)}, and spec.replicas is {spec.replicas}; "
            "change one of them"
        )
    if not given and len(zones) > 1 and spec.replicas < len(zones):
        yield (
            f"spec.replicas: {spec.replicas} bookies leave one of {len(zones)} zones without; raise replicas or list "
            "fewer zones"
        )
    with_bookies = sum(number > 0 for number in given) if given else len(zones)
    if least > 1 and with_bookies < least:
        yield (
            f"spec.placement.minZonesPerWriteQuorum: {least}, and {with_bookies} zones have bookies; give bookies to "
            "more zones or lower it"
        )
    if least > spec.durability.write_quorum:
        yield "spec.placement.minZonesPerWriteQuorum: must not exceed durability.writeQuorum; lower it"


def _sizes(spec: BookieClusterSpec) -> Iterator[str]:
    storage = spec.storage
    sizes = [
        ("storage.journal", storage.journal.size),
        ("storage.ledger", storage.ledger.size),
        ("metadataService", spec.metadata_service.size),
    ]
    if storage.index is not None:
        sizes.append(("storage.index", storage.index.size))
    if spec.backup is not None:
        sizes.append(("backup", spec.backup.size))
    for path, size in sizes:
        if (known_bytes(size) or 0) <= 0:
            yield f"spec.{path}.size: must be an amount of bytes above 0, as 100Gi"


def _classes(spec: BookieClusterSpec) -> Iterator[str]:
    storage = spec.storage
    for kind, volume in (("journal", storage.journal), ("ledger", storage.ledger), ("index", storage.index)):
        name = volume.volume_attributes_class_name if volume is not None else None
        if name is not None and not _CLASS.fullmatch(name):
            yield (
                f"spec.storage.{kind}.volumeAttributesClassName: must be a name that a VolumeAttributesClass can have, "
                "as gold; leave the field out if there is to be none"
            )


def _security(spec: BookieClusterSpec) -> Iterator[str]:
    tls = spec.tls
    if tls.enabled and (tls.secret_name is None) == (tls.issuer_ref is None):
        yield "spec.tls: needs a certificate: give either secretName or issuerRef, not both"
    admin = tls.admin_api
    if admin.enabled and admin.secret_name is not None and admin.issuer_ref is not None:
        yield (
            "spec.tls.adminApi: the admin API has one certificate: give secretName or issuerRef, or neither, and the "
            "operator makes one"
        )
    for path, issuer in (("spec.tls", tls.issuer_ref), ("spec.tls.adminApi", admin.issuer_ref)):
        if issuer is not None and not isinstance(issuer.get("name"), str):
            yield f"{path}.issuerRef: has no name; give the issuer as {{name, kind, group}}"
    if not _INTERVAL.fullmatch(spec.monitoring.pod_monitor.interval):
        yield "spec.monitoring.podMonitor.interval: must be a whole number and ms, s, m or h, as 30s"


def _twice(spec: BookieClusterSpec) -> Iterator[str]:
    """A field and a key of the configuration that say the same thing."""
    fields: dict[str, tuple[str, object]] = {
        "logLevel": ("logging.level", spec.logging.level),
        "logFormat": ("logging.format", spec.logging.format),
        "replicationLedgersAtOnce": (
            "autorecovery.maxConcurrentLedgers",
            spec.autorecovery.max_concurrent_ledgers,
        ),
    }
    for key, (field, given) in fields.items():
        if given is not None and key in spec.config:
            yield f"spec.config.{key}: spec.{field} says it too; remove one of them"


def _gateway(spec: BookieClusterSpec) -> Iterator[str]:
    """A configuration with which the process of `spec.gateway` would refuse to start."""
    if not spec.gateway.enabled:
        return
    on = {key: switched(spec.config.get(key, "")) for key in _GATEWAY_KEYS}
    for key in ("grpcServerEnabled", "gatewayEnabled"):
        if on[key] is False:
            yield f"spec.gateway.enabled: with {key} off in spec.config there are none; remove that key, or disable it"
    by_certificate = spec.tls.enabled and on["tlsClientAuthentication"]
    if not (by_certificate or spec.config.get(_LOGINS, "").strip()) or on["gatewayEnabled"] is not None:
        return
    if not (on["grpcServerTlsClientAuthentication"] or on["allowInsecureAccess"] or _TOKENS in spec.config):
        return  # the operator's token
    certificates = on["grpcServerTlsEnable"] is not False and on["grpcServerTlsClientAuthentication"]
    tokens = spec.config.get(_TOKENS, "").strip()
    hidden = {str(each.get("name")) for each in spec.pod.env} & {f"BK_{key}" for key in (*_GATEWAY_KEYS, _TOKENS)}
    if not (certificates or tokens or hidden):  # `hidden`: in a Secret, so that only the process can tell
        yield (
            f"spec.gateway.enabled: bookies demand certificates (tlsClientAuthentication) or logins ({_LOGINS}), and "
            f"gateways would let everybody past them; set grpcServerTlsClientAuthentication or {_TOKENS} in spec.config"
        )


def is_version(text: str) -> bool:
    return _VERSION.fullmatch(text) is not None


def is_older(version: str, than: str) -> bool:
    """Return whether it is of an earlier minor version; False if either is not a version."""
    one, other = _VERSION.fullmatch(version), _VERSION.fullmatch(than)
    return one is not None and other is not None and _numbers(one) < _numbers(other)


def _numbers(found: re.Match[str]) -> tuple[int, ...]:
    return tuple(map(int, found.groups()))


def _version(spec: BookieClusterSpec, status: BookieClusterStatus) -> Iterator[str]:
    if not _TAG.fullmatch(spec.version):
        yield "spec.version: must be letters, digits, dots, dashes and underscores, as 1.2.3"
    if is_older(spec.version, status.version.current):
        yield (
            f"spec.version: {spec.version} is older than {status.version.current}, which the bookies run and whose "
            "files an older version may not read; set it back"
        )


_ENVIRONMENT: Final = "BK_"
_RESOURCES: Final = frozenset({"requests", "limits", "claims"})
_OWN_LABELS: Final = (names.NAME, names.INSTANCE, names.COMPONENT, names.PART_OF, names.MANAGED_BY)
_BOOKIE: Final = "bookie"
_VOLUMES: Final = ("journal-", "ledger-", "index-", "podkeeper-")
_DATA: Final = "/data"


def config_faults(config: Mapping[str, str]) -> Iterator[str]:
    """Keys that there are not, that the operator sets, or whose value is of the wrong kind."""
    known = known_keys()
    first: dict[str, str] = {}
    for name, text in sorted(config.items()):
        path = f"spec.config.{name}"
        if name in RESERVED:
            yield f"{path}: the operator sets it; remove it: {RESERVED[name]}"
        elif name not in known:
            if not is_ignored(name):
                near = nearest(name)
                remedy = f"did you mean {near}?" if near else "docs/configuration.md lists the known ones"
                yield f"{path}: there is no such key; {remedy}"
        elif (other := first.setdefault(known[name][1].name, name)) != name:
            yield f"{path}: it is another name of {other}, which is set too; remove one of them"
        elif broken := fault(name, text):
            yield f"{path}: {broken}; change the value"


def pod_faults(pod: Pod) -> Iterator[str]:
    """Yield what the operator's own parts of the pods forbid, and what Kubernetes would refuse with less clear
    words."""
    for key in sorted(set(pod.resources) - _RESOURCES):
        yield f"spec.pod.resources.{key}: there is no such part; write it below requests or limits"
    yield from resource_faults("spec.pod.resources", pod.resources)
    for kind in sorted(pod.affinity):
        if not isinstance(pod.affinity[kind], Mapping):
            yield f"spec.pod.affinity.{kind}: must be a map, see `kubectl explain pod.spec.affinity`"
    for where, given in (("labels", pod.labels), ("annotations", pod.annotations)):
        for key in sorted(given):
            if key in _OWN_LABELS or key.partition("/")[0] == names.GROUP:
                yield f"spec.pod.{where}.{key}: the operator sets it; remove it"
    yield from _environment(pod.env)
    yield from _containers(pod)
    yield from _spreading(pod.topology_spread_constraints)
    taken: set[str] = set()
    for position, volume in enumerate(pod.extra_volumes):
        if not _name(volume) or _name(volume).startswith(_VOLUMES):
            yield (
                f"spec.pod.extraVolumes[{position}].name: must be given, and not begin with journal-, ledger-, "
                "index- or podkeeper-; give another"
            )
        elif _name(volume) in taken:
            yield f"spec.pod.extraVolumes[{position}].name: another volume has it already; give another"
        taken.add(_name(volume))
    volumes = {_name(volume) for volume in pod.extra_volumes}
    for position, mount in enumerate(pod.extra_volume_mounts):
        if _name(mount) not in volumes:
            yield f"spec.pod.extraVolumeMounts[{position}].name: no such volume in spec.pod.extraVolumes; add it there"
        path = posixpath.normpath(str(mount.get("mountPath", "")))
        if path == "/" or path == _DATA or path.startswith(f"{_DATA}/"):
            yield (
                f"spec.pod.extraVolumeMounts[{position}].mountPath: would hide the bookies' data; mount it outside of "
                f"{_DATA}"
            )


def resource_faults(path: str, resources: Mapping[str, Any]) -> Iterator[str]:
    """A shape that Kubernetes would refuse."""
    for part in ("limits", "requests"):
        given = resources.get(part)
        if given is not None and not isinstance(given, Mapping):
            yield f"{path}.{part}: must be a map such as {{cpu: 500m, memory: 4Gi}}; write it so"


def _containers(pod: Pod) -> Iterator[str]:
    taken = {_BOOKIE}
    for where, given in (("sidecars", pod.sidecars), ("initContainers", pod.init_containers)):
        for position, container in enumerate(given):
            name = _name(container)
            if name in ("", _BOOKIE):
                yield f"spec.pod.{where}[{position}].name: must be given, and not be {_BOOKIE}; give another"
            elif name in taken:
                yield f"spec.pod.{where}[{position}].name: another container has it already; give another"
            taken.add(name)


def _spreading(constraints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for position, each in enumerate(constraints):
        path = f"spec.pod.topologySpreadConstraints[{position}]"
        skew = each.get("maxSkew")
        if not isinstance(skew, int) or isinstance(skew, bool) or skew < 1:
            yield f"{path}.maxSkew: must be a whole number above 0; give one"
        if not each.get("topologyKey") or not isinstance(each["topologyKey"], str):
            yield f"{path}.topologyKey: is required; give a label of nodes"
        if each.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
            yield f"{path}.whenUnsatisfiable: must be DoNotSchedule or ScheduleAnyway; give one of them"
    pairs = [(each.get("topologyKey"), each.get("whenUnsatisfiable")) for each in constraints]
    if any(pair in pairs[:place] for place, pair in enumerate(pairs)):
        yield (
            "spec.pod.topologySpreadConstraints: two of them have the same topologyKey and whenUnsatisfiable; "
            "remove one of them"
        )


def _environment(env: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for position, variable in enumerate(env):
        path, name = f"spec.pod.env[{position}].name", _name(variable)
        key = name.removeprefix(_ENVIRONMENT)
        if not name:
            yield f"{path}: is required; give it"
        elif key != name and key in RESERVED:
            yield f"{path}: the operator sets the key {key}; remove it: {RESERVED[key]}"
        elif key != name and "valueFrom" not in variable and (key in known_keys() or is_ignored(key)):
            yield f"{path}: {key} is a key of the bookies; set it in spec.config, or take it from a Secret (valueFrom)"


def _name(part: Mapping[str, Any]) -> str:
    name = part.get("name", "")
    return name if isinstance(name, str) else ""
