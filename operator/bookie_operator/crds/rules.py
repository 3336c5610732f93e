"""Rules in CEL, by which the API server judges a resource before it stores it.

Each has the message that a user sees. The module also puts them into a schema (`x-kubernetes-validations`).

A rule belongs here when it can be judged by the resource alone and no honest change ever has to break it. What depends
on the world, and a downgrade, is judged in the loop (`validation`): a refused apply breaks the sync of a GitOps tool, a
condition does not.

Invariants
- Each message says what is wrong and what to do.
- A rule that compares with the old object belongs to a node that is always there: the API server skips it where a field
  was added or removed. `has` of both sides replaces it there.
- The settings with which a cluster is made may be changed until it exists (`status.instanceId`): a slip can be
  corrected, and a new one that finds the volumes of an old one gets the advice to adopt them.
- A size below that of the volumes has no effect, and is refused. `allowSmallerSizes` accepts it, so that an earlier
  release of a chart can be applied again.

Source: Kubernetes documentation, CustomResourceDefinition, "Validation rules".

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.crds.config_keys import RESERVED
from bookie_operator.crds.schema import Schema

MAX_NAME: Final = 40
VERSION_PATTERN: Final = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$"
ZONE_PATTERN: Final = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
CLASS_PATTERN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
DIRECTORY_PATTERN: Final = "^(/[A-Za-z0-9_][A-Za-z0-9._-]*)+$"
INTERVAL_PATTERN: Final = "^[0-9]{1,9}(ms|s|m|h)$"
SCHEDULE_PATTERN: Final = (
    "^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4})$"
)
TIME_ZONE_PATTERN: Final = "^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
CLAIM_OF_A_POD: Final = "^((journal|ledger|index)-[0-9]+-.+-bookie(-.+)?|data-.+-metadata)-[0-9]+$"
"""Names of the claims of bookies and of metadata services, of any cluster."""
CLAIM_IN_PLACE: Final = "-bookie-[0-9]+$"
"""End of those of bookies that were taken over in place, which begin with the name of a template."""
_OF_A_POD: Final = (
    "it is the volume of a pod of this or another cluster, on which backups would take room and be lost with the data: "
    "name a claim that is for backups alone, or leave the field out to have the operator make one"
)
URI_PATTERN: Final = r"^((zk(\\+[a-z]+)?|etcd)://[^/@?#\\s]+|oxia://[^/@?#\\s]+/[^/@?#\\s]+)/?$"
_EXISTS: Final = "has(self.status) && has(self.status.instanceId) && size(self.status.instanceId) > 0"
_NEW: Final = f"!({_EXISTS})"
_KEYS: Final = "[" + ", ".join(f"'{key}'" for key in RESERVED) + "]"
_TWICE: Final = (
    ("logLevel", "logging.level"),
    ("logFormat", "logging.format"),
    ("replicationLedgersAtOnce", "autorecovery.maxConcurrentLedgers"),
)
"""Keys of the configuration that fields stand for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `path`: the node that `self` is, from the root of the resource (empty); `[]`: each item of a list."""

    path: str
    rule: str
    message: str
    expression: str = ""
    """Message made of the object by CEL; `message` where that fails."""
    field: str = ""
    """The field that is named, below `path`; empty: the node itself."""

    def rendered(self) -> dict[str, Any]:
        """The rule as an item of `x-kubernetes-validations`."""
        item: dict[str, Any] = {"rule": self.rule, "message": self.message}
        if self.expression:
            item["messageExpression"] = self.expression
        if self.field:
            item["fieldPath"] = f".{self.field}"
        return item


def with_rules(schema: Schema, rules: tuple[Rule, ...]) -> Schema:
    """A copy of a resource's schema that bears the rules. Raises KeyError for a rule on a node that is not there."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        grouped.setdefault(rule.path, []).append(rule.rendered())
    for path in grouped:
        node_at(schema, path)
    return _bearing(schema, "", grouped)


def node_at(schema: Schema, path: str) -> Schema:
    """The node at a rule's path. Raises KeyError."""
    node = schema
    for part in path.split(".") if path else ():
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    return node


def _bearing(schema: Schema, path: str, grouped: Mapping[str, list[dict[str, Any]]]) -> Schema:
    copy = dict(schema)
    if path in grouped:
        copy["x-kubernetes-validations"] = grouped[path]
    if "properties" in copy:
        copy["properties"] = {
            name: _bearing(child, f"{path}.{name}" if path else name, grouped)
            for name, child in copy["properties"].items()
        }
    if "items" in copy:
        copy["items"] = _bearing(copy["items"], f"{path}[]", grouped)
    return copy


def _same(part: str, *fields: str) -> str:
    return " && ".join(f"self.spec.{part}.{field} == oldSelf.spec.{part}.{field}" for field in fields)


def same_if_given(field: str) -> str:
    """`field`: its path from the resource or the part of it that the rule is about."""
    now, old = f"self.{field}", f"oldSelf.{field}"
    return f"has({now}) == has({old}) && (!has({now}) || {now} == {old})"


def _volume(kind: str) -> Iterator[Rule]:
    path = f"spec.storage.{kind}"
    yield Rule(
        path,
        "isQuantity(self.size) && quantity(self.size).isGreaterThan(quantity('0'))",
        "must be an amount of bytes as Kubernetes writes it, above 0: for example 100Gi",
        field="size",
    )
    yield Rule(
        path,
        f"!has(self.volumeAttributesClassName) || self.volumeAttributesClassName.matches('{CLASS_PATTERN}')",
        "must be a name that a VolumeAttributesClass can have: lower-case letters, digits, dashes and dots; leave the "
        "field out if there is to be none",
        field="volumeAttributesClassName",
    )


def _kept(kind: str) -> Rule:
    """Refuse another number of volumes: no bookie that exists can have it."""
    now, old = f"self.spec.storage.{kind}", f"oldSelf.spec.storage.{kind}"
    free = _NEW if kind != "index" else f"{_NEW} || !has({now}) || !has({old})"
    return Rule(
        "",
        f"{free} || {now}.volumes == {old}.volumes",
        "the number of volumes of a bookie cannot be changed: put the old one back, and grow `size` instead",
        field=f"spec.storage.{kind}.volumes",
    )


def _no_smaller(kind: str) -> Rule:
    """Refuse a size below that of the volumes. The size of an expansion that failed may be taken back."""
    now, old, actual = f"self.spec.storage.{kind}", f"oldSelf.spec.storage.{kind}", f"self.status.storage.{kind}"
    actual_size = f"{actual}.smallestActual"
    there = [f"has({now})", f"has({old})"] if kind == "index" else []
    known = ["has(self.status)", "has(self.status.storage)", f"has({actual})", f"has({actual_size})"]
    quantities = [f"isQuantity({each})" for each in (f"{now}.size", f"{old}.size", actual_size)]
    below = [f"quantity({now}.size).isLessThan(quantity({each}))" for each in (f"{old}.size", actual_size)]
    return Rule(
        "",
        f"self.spec.storage.allowSmallerSizes || !({' && '.join([*there, *known, *quantities, *below])})",
        "volumes never shrink: put the old size back; to apply an earlier release of a chart, set "
        "spec.storage.allowSmallerSizes, and volumes keep their size",
        field=f"spec.storage.{kind}.size",
    )


def _disruptions(field: str) -> Rule:
    return Rule(
        "spec",
        f"self.{field} == 1 || self.{field} < self.durability.ackQuorum",
        "must be 1, or less than durability.ackQuorum: an acknowledged entry may be on that many bookies only",
        field=field,
    )


def _in_place(kind: str) -> Rule:
    return Rule(
        f"spec.bootstrap.inPlace.{kind}",
        f"self.claim.matches('{CLASS_PATTERN}') && self.mountPath.matches('{DIRECTORY_PATTERN}') && "
        f"self.directories.all(d, d.matches('{DIRECTORY_PATTERN}') && (d == self.mountPath || "
        "d.startsWith(self.mountPath + '/')))",
        "must name a claim template, an absolute path where it is mounted, and directories on it, as in the old "
        "StatefulSet: `kubectl get statefulset NAME -o yaml` shows them",
    )


def schedule_rules(path: str, optional: str = "") -> Iterator[Rule]:
    """Yield the rules of the fields `schedule` and `timeZone`. `optional`: begins the expression if the first may be
    empty."""
    yield Rule(
        path,
        f"{optional}self.schedule.matches('{SCHEDULE_PATTERN}')",
        "must be five fields as in a CronJob (minute, hour, day of month, month, day of week) such as 0 3 * * 0, or "
        "one of @hourly, @daily, @weekly, @monthly and @yearly",
        field="schedule",
    )
    yield Rule(
        path,
        f"self.timeZone.matches('{TIME_ZONE_PATTERN}')",
        "must be a name of the time zone database: for example Europe/Berlin or Etc/UTC",
        field="timeZone",
    )


def _once(key: str, field: str) -> Rule:
    return Rule(
        "spec",
        f"!has(self.{field}) || !('{key}' in self.config)",
        f"the key {key} of config says it too: remove one of them",
        field=field,
    )


CLUSTER_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "",
        f"size(self.metadata.name) <= {MAX_NAME}",
        f"metadata.name: at most {MAX_NAME} characters, because names and labels of pods are made of it; "
        "choose a shorter name",
    ),
    Rule(
        "",
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        "metadata.name: must begin with a letter and hold lower-case letters, digits and dashes only, because "
        "Services are named after it; choose another name",
    ),
    Rule(
        "",
        f"{_NEW} || self.spec.bootstrap == oldSelf.spec.bootstrap || (!has(oldSelf.spec.bootstrap.inPlace) && "
        "self.spec.bootstrap.mode == 'New' && size(self.spec.bootstrap.instanceId) == 0)",
        "cannot be changed once the cluster exists, but may be removed unless bookies were taken over in place; put it "
        "back",
        field="spec.bootstrap",
    ),
    Rule(
        "spec",
        "!has(self.bootstrap.inPlace) || (self.bootstrap.mode == 'Adopt' && size(self.bootstrap.instanceId) > 0 && "
        "!has(self.storage.index) && self.storage.journal.volumes == 1 && self.storage.ledger.volumes == 1 && "
        "size(self.placement.zones) < 2)",
        "bookies that are taken over in place have one journal and one ledger volume each, and no zones: set mode to "
        "Adopt and instanceId to that of their cluster, and leave index volumes and zones out",
        field="bootstrap.inPlace",
    ),
    *(_in_place(kind) for kind in ("journal", "ledger")),
    Rule(
        "",
        f"{_NEW} || ({_same('metadataService', 'type', 'rootPath', 'size')} && "
        f"{_same('metadataService', 'etcd.replicas')} && {same_if_given('spec.metadataService.storageClassName')})",
        "cannot be changed but for uri, and image and resources of etcd: the cluster's ledgers are listed there; put "
        "it back, or make a new cluster",
        field="spec.metadataService",
    ),
    Rule(
        "",
        f"{_NEW} || has(self.spec.storage.index) == has(oldSelf.spec.storage.index)",
        "index volumes can neither be added nor removed: put it back as it was, or make a new cluster",
        field="spec.storage",
    ),
    Rule(
        "",
        f"{_NEW} || (size(self.spec.placement.zones) >= 2) == (size(oldSelf.spec.placement.zones) >= 2)",
        "a cluster with fewer than two zones cannot get zones, nor lose them: bookies are named after their zone; put "
        "them back, or make a new cluster",
        field="spec.placement.zones",
    ),
    *(rule for kind in ("journal", "ledger", "index") for rule in (_kept(kind), _no_smaller(kind))),
    Rule(
        "spec",
        f"self.version.matches('{VERSION_PATTERN}')",
        "must be a version such as 1.2.3: letters, digits, dots, dashes and underscores",
        field="version",
    ),
    Rule(
        "spec",
        "self.replicas >= self.durability.ensembleSize",
        "must be at least durability.ensembleSize, else no ledger could be written: raise it or lower ensembleSize",
        field="replicas",
    ),
    _disruptions("update.maxUnavailable"),
    _disruptions("disruption.maxUnavailable"),
    Rule(
        "spec",
        "self.placement.zones.all(z, !has(z.replicas)) || "
        "(self.placement.zones.all(z, has(z.replicas)) && "
        "self.placement.zones.map(z, z.replicas).sum() == self.replicas)",
        "give replicas for every zone, adding up to spec.replicas, or for none (they are spread evenly then)",
        field="placement.zones",
    ),
    Rule(
        "spec",
        "self.placement.minZonesPerWriteQuorum <= self.durability.writeQuorum",
        "must not exceed durability.writeQuorum: an entry has no more copies than that",
        field="placement.minZonesPerWriteQuorum",
    ),
    Rule(
        "spec.placement",
        "self.minZonesPerWriteQuorum == 1 || self.minZonesPerWriteQuorum <= size(self.zones)",
        "more zones than placement.zones lists; list more zones or lower it",
        field="minZonesPerWriteQuorum",
    ),
    Rule(
        "",
        f"{_NEW} || size(oldSelf.spec.placement.zones) < 2 || oldSelf.spec.placement.zones.all(o, "
        "(has(o.replicas) && o.replicas == 0) || self.spec.placement.zones.exists(n, n.name == o.name))",
        "a zone with bookies cannot be removed: put it back with replicas: 0, and remove it when its bookies are gone",
        field="spec.placement.zones",
    ),
    Rule(
        "spec.placement.zones[]",
        f"self.name.matches('{ZONE_PATTERN}')",
        "must be a value that a label of nodes can have: letters, digits, dashes, underscores and dots, with a letter "
        "or digit at both ends",
        field="name",
    ),
    Rule(
        "spec.metadataService",
        f"self.type != 'External' || self.uri.matches('{URI_PATTERN}')",
        "an external metadata service needs a URI such as zk+hierarchical://zk-0:2181;zk-1:2181, "
        "etcd://etcd-0:2379,etcd-1:2379 or oxia://oxia:6648/NAMESPACE, without a path (that is rootPath) and without "
        "credentials (those are in config); to have the operator run an etcd set type: Etcd",
        field="uri",
    ),
    Rule(
        "spec.metadataService",
        "!self.rootPath.contains('//') && !(self.rootPath + '/').contains('/../') && "
        "!(self.rootPath + '/').contains('/./') && !(self.rootPath + '/').startsWith('/zookeeper/')",
        "must be a path without empty parts, . and .., and not ZooKeeper's own /zookeeper: for example /ledgers",
        field="rootPath",
    ),
    Rule(
        "spec.metadataService",
        "self.type == 'External' || size(self.uri) == 0",
        "a metadata service that the operator runs has no URI of yours: remove it, or set type: External",
        field="uri",
    ),
    Rule(
        "spec.metadataService",
        "self.type != 'Etcd' || !isQuantity(self.size) || !quantity(self.size).isLessThan(quantity('1Gi'))",
        "must be 1Gi or more with type: Etcd, which keeps its log there too",
        field="size",
    ),
    Rule(
        "spec.metadataService.etcd",
        "self.replicas != 2 && self.replicas != 4",
        "must be 1, 3 or 5: another member than an odd one bears no further loss",
        field="replicas",
    ),
    Rule(
        "spec.metadataService",
        "isQuantity(self.size) && quantity(self.size).isGreaterThan(quantity('0'))",
        "must be an amount of bytes as Kubernetes writes it, above 0: for example 2Gi",
        field="size",
    ),
    *schedule_rules("spec.backup"),
    Rule(
        "spec.backup",
        f"self.claimName == '' || self.claimName.matches('{CLASS_PATTERN}')",
        "must be a name that a PersistentVolumeClaim can have: lower-case letters, digits, dashes and dots; leave the "
        "field out to have the operator make one",
        field="claimName",
    ),
    Rule("spec.backup", f"!self.claimName.matches('{CLAIM_OF_A_POD}')", _OF_A_POD, field="claimName"),
    Rule(
        "spec",
        f"!has(self.backup) || !has(self.bootstrap.inPlace) || !self.backup.claimName.matches('{CLAIM_IN_PLACE}') || "
        "[self.bootstrap.inPlace.journal.claim, self.bootstrap.inPlace.ledger.claim].all(c, "
        "!self.backup.claimName.startsWith(c + '-'))",
        _OF_A_POD,
        field="backup.claimName",
    ),
    Rule(
        "spec.backup",
        "isQuantity(self.size) && quantity(self.size).isGreaterThan(quantity('0'))",
        "must be an amount of bytes as Kubernetes writes it, above 0: for example 1Gi",
        field="size",
    ),
    Rule(
        "spec.durability",
        "self.ackQuorum <= self.writeQuorum",
        "must not exceed writeQuorum: an entry has no more copies to be acknowledged",
        field="ackQuorum",
    ),
    Rule(
        "spec.durability",
        "self.writeQuorum <= self.ensembleSize",
        "must not exceed ensembleSize: each copy is on a bookie of its own",
        field="writeQuorum",
    ),
    *(rule for kind in ("journal", "ledger", "index") for rule in _volume(kind)),
    Rule(
        "spec.config",
        f"!{_KEYS}.exists(k, k in self)",
        "the operator sets some of these keys itself: remove them; docs/bookiecluster.md tells what to use instead",
        expression=f"'the operator sets ' + {_KEYS}.filter(k, k in self)[0] + ' itself: remove it; "
        "docs/bookiecluster.md tells what to use instead'",
    ),
    *(_once(key, field) for key, field in _TWICE),
    Rule(
        "spec.tls",
        "!self.enabled || (has(self.issuerRef) != has(self.secretName))",
        "TLS needs a certificate: give either secretName or issuerRef, not both",
    ),
    Rule(
        "spec.tls.adminApi",
        "!self.enabled || !(has(self.issuerRef) && has(self.secretName))",
        "the admin API has one certificate: give secretName or issuerRef, or neither, and the operator makes one",
    ),
    Rule(
        "spec.monitoring.podMonitor",
        f"self.interval.matches('{INTERVAL_PATTERN}')",
        "must be a whole number and ms, s, m or h: for example 30s",
        field="interval",
    ),
)

TASK_RULES: Final[tuple[Rule, ...]] = (
    Rule("spec", "self == oldSelf", "a task cannot be changed: create another one"),
    Rule(
        "spec",
        "!(self.type in ['Replace', 'Decommission']) || size(self.bookies) > 0",
        "name the bookies by their pods, such as demo-bookie-2",
        field="bookies",
    ),
    Rule(
        "spec",
        "!(self.type in ['Audit', 'AcceptLoss']) || size(self.bookies) == 0",
        "Audit and AcceptLoss are about the whole cluster: name no bookies",
        field="bookies",
    ),
    Rule(
        "spec",
        "(self.type == 'AcceptLoss') == (size(self.ledgers) > 0)",
        "AcceptLoss needs the ids of the ledgers that are given up; no other type takes ledgers",
        field="ledgers",
    ),
)
