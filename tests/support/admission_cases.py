"""What the API server refuses, with the words that a user sees: one case at least for each rule of the definitions."""

from __future__ import annotations

from typing import Any

from tests.support.admission_case import Case, Object
from tests.support.admission_case import resource as resource
from tests.support.job_admission_cases import JOBS_ALLOWED, JOBS_CHANGED, JOBS_CREATED


def _zones(*zones: tuple[str, int | None]) -> Object:
    return {"zones": [{"name": name} | ({} if number is None else {"replicas": number}) for name, number in zones]}


def _spec(**changes: Any) -> Object:
    return {"spec": changes}


def _etcd(**changes: Any) -> Object:
    """A cluster with an etcd of the operator's."""
    return _spec(metadataService={"type": "Etcd", "uri": "", **changes})


def _storage(**changes: Any) -> Object:
    return _spec(storage=changes)


_NAMED = "metadata.name: at most 40 characters"
_CREATED: Object = {"instanceId": "8e6a0a0c-7f0c-4f5e-9c57-0d1c1f0a2b11"}

_ADOPT: Object = {"mode": "Adopt", "instanceId": "8e6a0a0c-7f0c-4f5e-9c57-0d1c1f0a2b11"}
IN_PLACE: Object = {
    "journal": {"claim": "pulsar-bookie-journal", "mountPath": "/pulsar/data/bookkeeper/journal"},
    "ledger": {
        "claim": "pulsar-bookie-ledgers",
        "mountPath": "/pulsar/data/bookkeeper",
        "directories": ["/pulsar/data/bookkeeper/ledgers-0", "/pulsar/data/bookkeeper/ledgers-1"],
    },
}

CREATED = (
    Case("long-name", {"metadata": {"name": "a" * 41}}, _NAMED),
    Case("dotted-name", {"metadata": {"name": "a.b"}}, "metadata.name: must begin with a letter"),
    Case("name-of-digits", {"metadata": {"name": "1a"}}, "metadata.name: must begin with a letter"),
    Case("version", _spec(version="latest version"), "spec.version: Invalid value"),
    Case("version-words", _spec(version="a:b"), "must be a version such as 1.2.3"),
    Case(
        "few-replicas",
        _spec(replicas=2),
        "must be at least durability.ensembleSize, else no ledger could be written: raise it or lower ensembleSize",
    ),
    Case("no-replicas", _spec(replicas=0), "spec.replicas"),
    Case("update-many", _spec(update={"maxUnavailable": 2}), "must be 1, or less than durability.ackQuorum"),
    Case("evict-many", _spec(disruption={"maxUnavailable": 2}), "must be 1, or less than durability.ackQuorum"),
    Case(
        "zones-sum",
        _spec(placement=_zones(("a", 1), ("b", 1))),
        "give replicas for every zone, adding up to spec.replicas, or for none",
    ),
    Case("zones-some", _spec(placement=_zones(("a", 3), ("b", None))), "give replicas for every zone"),
    Case(
        "zones-twice",
        _spec(placement=_zones(("a", None), ("a", None))),
        ".spec.placement.zones: duplicate entries for key",
    ),
    Case(
        "zones-per-quorum",
        _spec(placement={**_zones(*((name, None) for name in "abcd")), "minZonesPerWriteQuorum": 4}, replicas=4),
        "must not exceed durability.writeQuorum: an entry has no more copies",
    ),
    Case(
        "zones-too-few",
        _spec(placement={"minZonesPerWriteQuorum": 2}),
        "more zones than placement.zones lists",
    ),
    Case("zone-name", _spec(placement=_zones(("a b", None))), "must be a value that a label of nodes can have"),
    Case("no-uri", _spec(metadataService={"uri": None}), "an external metadata service needs a URI such as zk+"),
    Case("uri-with-path", _spec(metadataService={"uri": "zk://a:1/ledgers"}), "without a path (that is rootPath)"),
    Case("etcd-uri-with-path", _spec(metadataService={"uri": "etcd://a:1/podkeeper"}), "without a path (that is"),
    Case("etcd-uri-with-login", _spec(metadataService={"uri": "etcd://me:secret@a:1"}), "without credentials"),
    Case("oxia-uri-without-namespace", _spec(metadataService={"uri": "oxia://a:1"}), "oxia:6648/NAMESPACE"),
    Case("oxia-uri-with-root", _spec(metadataService={"uri": "oxia://a:1/default/ledgers"}), "without a path (that is"),
    Case("uri-with-query", _spec(metadataService={"uri": "zk://a:1?password=secret"}), "without credentials"),
    Case("uri-with-login", _spec(metadataService={"uri": "zk://me:secret@a:1"}), "without credentials"),
    *(
        Case(f"root-path-{n}", _spec(metadataService={"rootPath": path}), "must be a path without empty parts")
        for n, path in enumerate(("/a//b", "/../a", "/a/..b/../c", "/zookeeper", "/zookeeper/a"))
    ),
    Case(
        "embedded-uri",
        _spec(metadataService={"type": "Embedded"}),
        "that the operator runs has no URI of yours: remove",
    ),
    Case("own-etcd-uri", _spec(metadataService={"type": "Etcd"}), "that the operator runs has no URI of yours: remove"),
    *(
        Case(f"own-etcd-{n}", _etcd(etcd={"replicas": n}), "must be 1, 3 or 5: another member than an odd one")
        for n in (2, 4)
    ),
    Case("own-etcd-7", _etcd(etcd={"replicas": 7}), "spec.metadataService.etcd.replicas"),
    Case(
        "own-etcd-too-small", _etcd(size="900Mi"), "must be 1Gi or more with type: Etcd, which keeps its log there too"
    ),
    Case("metadata-size", _spec(metadataService={"size": "big"}), "above 0: for example 2Gi"),
    Case("acks", _spec(durability={"writeQuorum": 1}), "must not exceed writeQuorum: an entry has no more copies"),
    Case("writes", _spec(durability={"writeQuorum": 4}), "must not exceed ensembleSize: each copy is on a bookie of"),
    Case("size", _storage(journal={"size": "ten"}), "spec.storage.journal.size: Invalid value"),
    Case(
        "size-words", _storage(journal={"size": "ten"}), "must be an amount of bytes as Kubernetes writes it, above 0"
    ),
    Case("size-zero", _storage(ledger={"size": "0"}), "must be an amount of bytes as Kubernetes writes it, above 0"),
    Case("index-size", _storage(index={"size": "-1Gi"}), "spec.storage.index.size: Invalid value"),
    *(
        Case(
            f"{kind}-attributes-class-{number}",
            _storage(**{kind: {"size": "10Gi", "volumeAttributesClassName": name}}),
            "must be a name that a VolumeAttributesClass can have: lower-case letters, digits, dashes and dots",
        )
        for kind in ("journal", "ledger", "index")
        for number, name in enumerate(("", "Gold", "a..b"))
    ),
    Case(
        "reserved-keys",
        _spec(config={"bookieId": "a", "ledgerDirectories": "/b", "gcWaitTime": "1000"}),
        "the operator sets ledgerDirectories itself: remove it; docs/bookiecluster.md",
    ),
    Case(
        "reserved-old-name",
        _spec(config={"journalDirectory": "/a"}),
        "the operator sets journalDirectory itself: remove it",
    ),
    Case("log-level", _spec(logging={"level": "loud"}), "Unsupported value"),
    Case(
        "log-level-twice",
        _spec(logging={"level": "debug"}, config={"logLevel": "info"}),
        "the key logLevel of config says it too: remove one of them",
    ),
    Case(
        "log-format-twice",
        _spec(logging={"format": "json"}, config={"logFormat": "json"}),
        "the key logFormat of config says it too",
    ),
    Case(
        "ledgers-at-once-twice",
        _spec(autorecovery={"maxConcurrentLedgers": 2}, config={"replicationLedgersAtOnce": "2"}),
        "the key replicationLedgersAtOnce of config says it too",
    ),
    Case("tls-without", _spec(tls={"enabled": True}), "give either secretName or issuerRef, not both"),
    Case(
        "tls-both",
        _spec(tls={"enabled": True, "secretName": "a", "issuerRef": {"name": "b"}}),
        "give either secretName or issuerRef, not both",
    ),
    Case(
        "admin-tls-both",
        _spec(tls={"adminApi": {"secretName": "a", "issuerRef": {"name": "b"}}}),
        "the admin API has one certificate: give secretName or issuerRef, or neither, and the operator makes one",
    ),
    Case("interval", _spec(monitoring={"podMonitor": {"interval": "often"}}), "a whole number and ms, s, m or h"),
    Case(
        "in-place-new",
        _spec(bootstrap={"inPlace": IN_PLACE}),
        "bookies that are taken over in place have one journal and one ledger volume each, and no zones: set mode to",
    ),
    *(
        Case(
            f"in-place-{kind}-{number}",
            _spec(bootstrap={**_ADOPT, "inPlace": {**IN_PLACE, kind: wrong}}),
            "must name a claim template, an absolute path where it is mounted, and directories on it",
        )
        for kind in ("journal", "ledger")
        for number, wrong in enumerate(
            (
                {"claim": "A", "mountPath": "/a"},
                {"claim": "a", "mountPath": "a"},
                {"claim": "a", "mountPath": "/a/../b"},
                {"claim": "a", "mountPath": "/a", "directories": ["/ab"]},
            )
        )
    ),
    Case("number-as-value", _spec(config={"gcWaitTime": 1000}), ".spec.config.gcWaitTime: expected string"),
    Case("backup-schedule", _spec(backup={"schedule": "every day"}), "must be five fields as in a CronJob"),
    Case("backup-without-schedule", _spec(backup={"keep": 3}), "spec.backup.schedule: Required value"),
    Case("backup-zone", _spec(backup={"schedule": "@daily", "timeZone": "a b"}), "time zone database"),
    Case("backup-claim", _spec(backup={"schedule": "@daily", "claimName": "A_b"}), "a PersistentVolumeClaim can have"),
    *(
        Case(f"backup-claim-{name}", _spec(backup={"schedule": "@daily", "claimName": name}), "the volume of a pod")
        for name in (
            "journal-0-demo-bookie-2",
            "ledger-15-demo-bookie-eu-west-1a-10",
            "index-0-other-bookie-0",
            "data-demo-metadata-0",
        )
    ),
    Case(
        "backup-claim-in-place",
        _spec(
            bootstrap={"mode": "Adopt", "instanceId": "x", "inPlace": IN_PLACE},
            backup={"schedule": "@daily", "claimName": f"{IN_PLACE['ledger']['claim']}-demo-bookie-1"},
        ),
        "the volume of a pod",
    ),
    Case("backup-size", _spec(backup={"schedule": "@daily", "size": "0"}), "must be an amount of bytes as Kubernetes"),
    Case("task-bookies", _spec(type="Replace"), "name the bookies by their pods", kind="BookieTask"),
    Case("task-audit", _spec(bookies=["a"]), "Audit and AcceptLoss are about the whole cluster", kind="BookieTask"),
    Case("task-loss", _spec(type="AcceptLoss"), "AcceptLoss needs the ids of the ledgers", kind="BookieTask"),
    Case("task-ledgers", _spec(ledgers=[1]), "no other type takes ledgers", kind="BookieTask"),
    Case("task-type", _spec(type="Dance"), "Unsupported value", kind="BookieTask"),
    *JOBS_CREATED,
)
"""Refused when they are created."""

CHANGED = (
    Case(
        "metadata-service",
        _spec(metadataService={"type": "Embedded", "uri": ""}),
        "spec.metadataService: Invalid value",
        before={},
        status=_CREATED,
    ),
    Case(
        "metadata-service-words",
        _spec(metadataService={"rootPath": "/elsewhere"}),
        "cannot be changed but for uri, and image and resources of etcd: the cluster's ledgers are listed there; put "
        "it back, or make a new cluster",
        before={},
        status=_CREATED,
    ),
    *(
        Case(
            f"own-etcd-{next(iter(change))}",
            _etcd(**change),
            "cannot be changed but for uri, and image and resources of etcd",
            before=_etcd(),
            status=_CREATED,
        )
        for change in ({"etcd": {"replicas": 5}}, {"size": "3Gi"}, {"storageClassName": "slow"})
    ),
    Case(
        "bootstrap",
        _spec(bootstrap={"mode": "Adopt"}),
        "cannot be changed once the cluster exists, but may be removed unless bookies were taken over in place",
        before={},
        status=_CREATED,
    ),
    Case(
        "index-added",
        _storage(index={"size": "1Gi"}),
        "index volumes can neither be added nor removed",
        before={},
        status=_CREATED,
    ),
    Case(
        "index-removed",
        _storage(index=None),
        "index volumes can neither be added nor removed",
        before=_storage(index={"size": "1Gi"}),
        status=_CREATED,
    ),
    *(
        Case(
            f"{kind}-volumes",
            _storage(**{kind: {"size": "10Gi", "volumes": 2}}),
            "the number of volumes of a bookie cannot be changed: put the old one back",
            before=_storage(**{kind: {"size": "10Gi"}}),
            status=_CREATED,
        )
        for kind in ("journal", "ledger", "index")
    ),
    *(
        Case(
            f"{kind}-smaller",
            _storage(**{kind: {"size": "102399Mi"}}),
            "volumes never shrink: put the old size back",
            before=_storage(**{kind: {"size": "500Gi"}}),
            status={**_CREATED, "storage": {kind: {"requested": "500Gi", "smallestActual": "100Gi"}}},
        )
        for kind in ("journal", "ledger", "index")
    ),
    Case(
        "zones-introduced",
        _spec(placement=_zones(("a", None), ("b", None))),
        "a cluster with fewer than two zones cannot get zones, nor lose them",
        before={},
        status=_CREATED,
    ),
    Case(
        "zones-given-up",
        _spec(placement=_zones(("a", None))),
        "a cluster with fewer than two zones cannot get zones, nor lose them",
        before=_spec(placement=_zones(("a", None), ("b", None))),
        status=_CREATED,
    ),
    Case(
        "zone-removed",
        _spec(placement=_zones(("a", None), ("c", None))),
        "a zone with bookies cannot be removed: put it back with replicas: 0",
        before=_spec(placement=_zones(("a", None), ("b", None), ("c", None))),
        status=_CREATED,
    ),
    Case(
        "task",
        _spec(type="AcceptLoss", ledgers=[1]),
        "a task cannot be changed: create another one",
        before={},
        kind="BookieTask",
    ),
    *JOBS_CHANGED,
)
"""Refused as changes of what is stored."""

ALLOWED = (
    Case("in-place", _spec(bootstrap={**_ADOPT, "inPlace": IN_PLACE}), "", before={}),
    Case("bootstrap-before-it-exists", _spec(bootstrap={"mode": "Adopt"}), "", before={}),
    Case("adoption-taken-out", _spec(bootstrap={}), "", before=_spec(bootstrap=_ADOPT), status=_CREATED),
    Case("etcd-uri", _spec(metadataService={"uri": "etcd://etcd-0:2379,etcd-1:2379"}), "", before={}),
    Case("oxia-uri", _spec(metadataService={"uri": "oxia://oxia-0:6648,oxia-1:6648/default"}), "", before={}),
    Case("own-etcd", _etcd(etcd={"replicas": 1}), "", before=_etcd(etcd={"replicas": 3})),
    Case(
        "own-etcd-image",
        _etcd(etcd={"image": "registry.example/etcd:1", "resources": {"limits": {"memory": "4Gi"}}}),
        "",
        before=_etcd(),
        status=_CREATED,
    ),
    Case("backup", _spec(backup={"schedule": "0 3 * * mon-fri", "claimName": "a-b.c"}), "", before={}, status=_CREATED),
    *(
        Case(f"backup-claim-{name}", _spec(backup={"schedule": "@daily", "claimName": name}), "", before={})
        for name in ("my-bookie-backups-1", "ledger-backups", "data-demo-metadata", "demo-backup")
    ),
    Case("no-backup", _spec(), "", before=_spec(backup={"schedule": "@daily"}), status=_CREATED),
    Case("root-path-with-dots", _spec(metadataService={"rootPath": "/a/..b/zookeeper"}), "", before={}),
    Case("another-root-before-it-exists", _spec(metadataService={"rootPath": "/elsewhere"}), "", before={}),
    Case(
        "another-class-before-it-exists",
        _storage(journal={"size": "5Gi", "storageClassName": "slow", "volumes": 2}),
        "",
        before=_storage(journal={"size": "10Gi", "storageClassName": "fast"}),
    ),
    Case(
        "other-servers-of-the-metadata-service",
        _spec(metadataService={"uri": "zk+hierarchical://other-0:2181;other-1:2181"}),
        "",
        before={},
        status=_CREATED,
    ),
    Case("index-before-it-exists", _storage(index={"size": "1Gi"}), "", before={}),
    Case("zones-before-it-exists", _spec(placement=_zones(("a", None), ("b", None))), "", before={}),
    *(
        Case(
            f"{kind}-class-{how}",
            _storage(**{kind: {"size": "10Gi"} | ({"storageClassName": after} if after else {})}),
            "",
            before=_storage(**{kind: {"size": "10Gi"} | ({"storageClassName": before} if before else {})}),
            status=_CREATED,
        )
        for kind in ("journal", "ledger", "index")
        for how, before, after in (("changed", "fast", "slow"), ("named", "", "slow"), ("taken-out", "fast", ""))
    ),
    *(
        Case(
            f"{kind}-smaller-where-that-is-meant",
            _storage(**{kind: {"size": "100Gi"}}, allowSmallerSizes=True),
            "",
            before=_storage(**{kind: {"size": "500Gi"}}),
            status={**_CREATED, "storage": {kind: {"requested": "500Gi", "smallestActual": "500Gi"}}},
        )
        for kind in ("journal", "ledger", "index")
    ),
    Case(
        "as-small-as-ever-on-larger-volumes",
        _spec(storage={"ledger": {"size": "100Gi"}}, replicas=4),
        "",
        before=_storage(ledger={"size": "100Gi"}),
        status={**_CREATED, "storage": {"ledger": {"requested": "100Gi", "smallestActual": "500Gi"}}},
    ),
    Case(
        "smaller-while-nobody-knows-the-volumes",
        _storage(ledger={"size": "100Gi"}),
        "",
        before=_storage(ledger={"size": "500Gi"}),
        status={**_CREATED, "storage": {"ledger": {"requested": "500Gi", "smallestActual": ""}}},
    ),
    Case("more-replicas", _spec(replicas=5), "", before={}, status=_CREATED),
    Case("larger", _storage(ledger={"size": "200Gi"}), "", before={}),
    *(
        Case(
            f"attributes-class-{how}",
            _storage(ledger={"size": "100Gi", "volumeAttributesClassName": after}),
            "",
            before=_storage(ledger={"size": "100Gi", "volumeAttributesClassName": before}),
        )
        for how, before, after in (
            ("given", None, "gold"),
            ("changed", "gold", "fast.example-2"),
            ("taken-out", "gold", None),
        )
    ),
    Case("the-same-size-in-other-words", _storage(ledger={"size": "102400Mi"}), "", before={}),
    Case(
        "smaller-again-after-an-expansion-failed",
        _storage(ledger={"size": "120Gi"}),
        "",
        before=_storage(ledger={"size": "500Gi"}),
        status={"storage": {"ledger": {"requested": "500Gi", "smallestActual": "100Gi"}}},
    ),
    Case(
        "zone-added",
        _spec(placement=_zones(("a", None), ("b", None), ("c", None))),
        "",
        before=_spec(placement=_zones(("a", None), ("b", None))),
    ),
    Case(
        "empty-zone-removed",
        _spec(placement=_zones(("a", 2), ("b", 1))),
        "",
        before=_spec(placement=_zones(("a", 2), ("b", 1), ("c", 0))),
    ),
    Case("older-version", _spec(version="1.1.0"), "", before={}, status={"version": {"current": "1.2.0"}}),
    *JOBS_ALLOWED,
)
"""Taken, although they come near to a rule."""
