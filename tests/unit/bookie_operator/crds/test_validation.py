"""Each thing that is wrong gives one line: the field, what is wrong, the remedy; and no value that may be a secret."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.reading import MESSAGES
from bookie_operator.crds.validation import known_spec, parse_spec, parse_status, validate
from tests.support.admission_cases import IN_PLACE
from tests.unit.bookie_operator.crds.examples import PARTIAL, minimal, parsed

NOTHING = BookieClusterStatus()


def _zones(*zones: Any, least: int = 1) -> dict[str, Any]:
    return {
        "zones": [{"name": name} | ({} if number is None else {"replicas": number}) for name, number in zones],
        "minZonesPerWriteQuorum": least,
    }


FAULTS: list[tuple[dict[str, Any], str]] = [
    (
        {"metadataService": {"uri": "zookeeper:2181"}},
        "spec.metadataService.uri: an external metadata service needs a URI such as zk+hierarchical://",
    ),
    ({"metadataService": {"uri": "zk://zk-0:2181/ledgers"}}, "spec.metadataService.uri: an external"),
    ({"metadataService": {"uri": "zk://zk-0:2181?password=secret"}}, "spec.metadataService.uri: an external"),
    (
        {"metadataService": {"type": "Embedded", "uri": "zk://zk-0:2181"}},
        "spec.metadataService.uri: one that the operator runs has none; remove it",
    ),
    (
        {"metadataService": {"uri": "zk://a", "rootPath": "/a//b"}},
        "spec.metadataService.rootPath: must be a path without empty parts",
    ),
    (
        {"bootstrap": {"inPlace": IN_PLACE}},
        "spec.bootstrap.inPlace: set mode to Adopt, and instanceId to that of the bookies' cluster",
    ),
    (
        {
            "bootstrap": {"mode": "Adopt", "instanceId": "a", "inPlace": IN_PLACE},
            "storage": {"journal": {"size": "1Gi", "volumes": 2}, "ledger": {"size": "1Gi"}},
        },
        "spec.bootstrap.inPlace: bookies that are taken over have one journal and one ledger volume each, and no zones",
    ),
    *(
        (
            {"bootstrap": {"mode": "Adopt", "instanceId": "a", "inPlace": {**IN_PLACE, "ledger": wrong}}},
            "spec.bootstrap.inPlace.ledger: must name a claim template, an absolute path where it is mounted",
        )
        for wrong in (
            {"claim": "A", "mountPath": "/a"},
            {"claim": "a", "mountPath": "/a/../b"},
            {"claim": "a", "mountPath": "/a", "directories": ["/ab"]},
        )
    ),
    (
        {
            "bootstrap": {
                "mode": "Adopt",
                "instanceId": "a",
                "inPlace": {**IN_PLACE, "ledger": {"claim": "b", "mountPath": "/hidden"}},
            },
            "pod": {
                "extraVolumes": [{"name": "x", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "x", "mountPath": "/hidden/current/"}],
            },
        },
        "spec.pod.extraVolumeMounts: one would hide the bookies' data on /hidden; mount it elsewhere",
    ),
    *(
        ({"backup": {"schedule": "@daily", "claimName": name}}, "spec.backup.claimName: it is the volume of a pod")
        for name in ("journal-0-a-bookie-1", "ledger-1-a-bookie-zone-b-10", "index-0-a-bookie-0", "data-a-metadata-0")
    ),
    (
        {
            "bootstrap": {"mode": "Adopt", "instanceId": "a", "inPlace": IN_PLACE},
            "backup": {"schedule": "@daily", "claimName": "pulsar-bookie-journal-a-bookie-2"},
        },
        "spec.backup.claimName: it is the volume of a pod",
    ),
    ({"durability": {"ackQuorum": 3, "writeQuorum": 2}}, "spec.durability.ackQuorum: must not exceed writeQuorum"),
    ({"durability": {"writeQuorum": 4}}, "spec.durability.writeQuorum: must not exceed ensembleSize"),
    (
        {"replicas": 2},
        "spec.replicas: 2 bookies are fewer than durability.ensembleSize (3): no ledger could be written; raise",
    ),
    ({"update": {"maxUnavailable": 2}}, "spec.update.maxUnavailable: must be 1, or less than durability.ackQuorum (2)"),
    ({"disruption": {"maxUnavailable": 5}}, "spec.disruption.maxUnavailable: must be 1, or less"),
    (
        {"placement": _zones(("a", 1), ("b", None))},
        "spec.placement.zones: give replicas for every zone or for none",
    ),
    (
        {"replicas": 4, "placement": _zones(("a", 1), ("b", 2))},
        "spec.placement.zones: their replicas add up to 3, and spec.replicas is 4; change one of them",
    ),
    ({"placement": _zones(("a", None), ("a", None))}, "spec.placement.zones: a zone is listed twice"),
    (
        {"placement": _zones(("a", None), ("b", None), ("c", None), ("d", None))},
        "spec.replicas: 3 bookies leave one of 4 zones without; raise replicas or list fewer zones",
    ),
    (
        {"placement": _zones(("a", 3), ("b", 0), least=2)},
        "spec.placement.minZonesPerWriteQuorum: 2, and 1 zones have bookies",
    ),
    ({"placement": _zones(least=4)}, "spec.placement.minZonesPerWriteQuorum: must not exceed durability.writeQuorum"),
    (
        {"storage": {"journal": {"size": "ten"}, "ledger": {"size": "1Gi"}}},
        "spec.storage.journal.size: must be an amount of bytes above 0, as 100Gi",
    ),
    ({"storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "0"}}}, "spec.storage.ledger.size: must be"),
    (
        {"storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "1Gi"}, "index": {"size": "-1Gi"}}},
        "spec.storage.index.size: must be",
    ),
    ({"metadataService": {"type": "Embedded", "size": "big"}}, "spec.metadataService.size: must be"),
    ({"metadataService": {"type": "Etcd", "size": "1000Mi"}}, "spec.metadataService.size: must be 1Gi or more"),
    (
        {"metadataService": {"type": "Etcd", "etcd": {"replicas": 4}}},
        "spec.metadataService.etcd.replicas: must be 1, 3",
    ),
    ({"tls": {"enabled": True}}, "spec.tls: needs a certificate: give either secretName or issuerRef"),
    ({"tls": {"enabled": True, "secretName": "a", "issuerRef": {"name": "b"}}}, "spec.tls: needs a certificate"),
    ({"tls": {"enabled": True, "issuerRef": {"kind": "Issuer"}}}, "spec.tls.issuerRef: has no name"),
    ({"tls": {"adminApi": {"issuerRef": {"kind": "Issuer"}}}}, "spec.tls.adminApi.issuerRef: has no name"),
    (
        {"tls": {"adminApi": {"secretName": "a", "issuerRef": {"name": "b"}}}},
        "spec.tls.adminApi: the admin API has one certificate: give secretName or issuerRef, or neither, and the",
    ),
    ({"monitoring": {"podMonitor": {"interval": "often"}}}, "spec.monitoring.podMonitor.interval: must be a whole"),
    ({"config": {"gcWaitTimes": "1"}}, "spec.config.gcWaitTimes: there is no such key; did you mean gcWaitTime?"),
    ({"config": {"zzzz": "1"}}, "spec.config.zzzz: there is no such key; docs/configuration.md lists"),
    ({"config": {"gcWaitTime": "soon"}}, "spec.config.gcWaitTime: must be a whole number; change the value"),
    ({"config": {"diskUsageThreshold": "1.5"}}, "spec.config.diskUsageThreshold: must be less than 1"),
    ({"config": {"journalSyncData": "perhaps"}}, "spec.config.journalSyncData: must be true or false"),
    (
        {"config": {"ledgerDirectories": "/x"}},
        "spec.config.ledgerDirectories: the operator sets it; remove it: use spec.storage.ledger",
    ),
    (
        {"config": {"compactionRate": "5", "compactionRateByEntries": "5"}},
        "spec.config.compactionRateByEntries: it is another name of compactionRate, which is set too",
    ),
    ({"pod": {"resources": {"memory": "1Gi"}}}, "spec.pod.resources.memory: there is no such part; write it below"),
    ({"pod": {"labels": {"app.kubernetes.io/name": "x"}}}, "spec.pod.labels.app.kubernetes.io/name: the operator sets"),
    ({"pod": {"annotations": {"podkeeper.dev/zone": "x"}}}, "spec.pod.annotations.podkeeper.dev/zone: the operator"),
    ({"pod": {"env": [{"value": "x"}]}}, "spec.pod.env[0].name: is required"),
    ({"pod": {"env": [{"name": "BK_bookieId", "value": "x"}]}}, "spec.pod.env[0].name: the operator sets the key"),
    ({"pod": {"env": [{"name": "BK_gcWaitTime", "value": "1"}]}}, "spec.pod.env[0].name: gcWaitTime is a key of the"),
    ({"pod": {"sidecars": [{"name": "bookie"}]}}, "spec.pod.sidecars[0].name: must be given, and not be bookie"),
    (
        {"pod": {"initContainers": [{"image": "a"}]}},
        "spec.pod.initContainers[0].name: must be given, and not be bookie",
    ),
    (
        {"pod": {"initContainers": [{"name": "a"}], "sidecars": [{"name": "a"}]}},
        "spec.pod.initContainers[0].name: another container has it already; give another",
    ),
    (
        {"pod": {"topologySpreadConstraints": [{"topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]}},
        "spec.pod.topologySpreadConstraints[0].maxSkew: must be a whole number above 0",
    ),
    (
        {"pod": {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}},
        "spec.pod.topologySpreadConstraints[0].topologyKey: is required",
    ),
    (
        {"pod": {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "Never"}]}},
        "spec.pod.topologySpreadConstraints[0].whenUnsatisfiable: must be DoNotSchedule or ScheduleAnyway",
    ),
    (
        {
            "pod": {
                "topologySpreadConstraints": [
                    {"maxSkew": skew, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"} for skew in (1, 2)
                ]
            }
        },
        "spec.pod.topologySpreadConstraints: two of them have the same topologyKey and whenUnsatisfiable",
    ),
    (
        {"logging": {"level": "debug"}, "config": {"logLevel": "info"}},
        "spec.config.logLevel: spec.logging.level says it too; remove one of them",
    ),
    (
        {"logging": {"format": "json"}, "config": {"logFormat": "json"}},
        "spec.config.logFormat: spec.logging.format says it too",
    ),
    (
        {"autorecovery": {"maxConcurrentLedgers": 2}, "config": {"replicationLedgersAtOnce": "3"}},
        "spec.config.replicationLedgersAtOnce: spec.autorecovery.maxConcurrentLedgers says it too",
    ),
    (
        {"gateway": {"enabled": True}, "config": {"gatewayEnabled": " No "}},
        "spec.gateway.enabled: with gatewayEnabled off in spec.config there are none; remove that key, or disable it",
    ),
    (
        {"gateway": {"enabled": True}, "config": {"grpcServerEnabled": "false"}},
        "spec.gateway.enabled: with grpcServerEnabled off in spec.config there are none",
    ),
    (
        {
            "gateway": {"enabled": True},
            "tls": {"enabled": True, "secretName": "a"},
            "config": {"tlsClientAuthentication": "true", "allowInsecureAccess": "true"},
        },
        "spec.gateway.enabled: bookies demand certificates (tlsClientAuthentication) or logins (bookieAuthProvider",
    ),
    ({"pod": {"extraVolumes": [{"name": "journal-0"}]}}, "spec.pod.extraVolumes[0].name: must be given, and not begin"),
    ({"pod": {"extraVolumeMounts": [{"name": "ca"}]}}, "spec.pod.extraVolumeMounts[0].name: no such volume"),
    (
        {"pod": {"extraVolumes": [{"name": "ca"}, {"name": "ca"}]}},
        "spec.pod.extraVolumes[1].name: another volume has it already; give another",
    ),
    (
        {
            "pod": {
                "extraVolumes": [{"name": "ca"}],
                "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/../data/ledger-0/current"}],
            }
        },
        "spec.pod.extraVolumeMounts[0].mountPath: would hide the bookies' data; mount it outside of /data",
    ),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS, ids=[message.split(":")[0] for _, message in FAULTS])
def test_a_fault_gives_its_message(changes: dict[str, Any], message: str) -> None:
    (told,) = [told for told in validate(parsed(**changes), NOTHING) if told.startswith(message)]
    assert "\n" not in told


@pytest.mark.parametrize("spec", PARTIAL)
def test_good_specs_have_no_faults(spec: dict[str, Any]) -> None:
    typed, faults = parse_spec(spec)
    assert faults == ()
    assert typed is not None
    assert validate(typed, NOTHING) == ()


def test_a_key_may_be_taken_from_a_secret() -> None:
    variable = {"name": "BK_httpServerKeyStorePassword", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert validate(parsed(pod={"env": [variable]}), NOTHING) == ()


def test_keys_that_apache_knows_and_nobody_needs_are_accepted() -> None:
    assert validate(parsed(config={"addEntryTimeoutSec": "5", "dlog.bk": "x"}), NOTHING) == ()


@pytest.mark.parametrize(
    ("running", "wanted", "refused"),
    [
        ("1.3.0", "1.2.9", True),
        ("2.0.0", "1.9.0", True),
        ("1.2.5", "1.2.0", False),
        ("1.2.0", "1.3.0", False),
        ("1.10.0", "1.9.0", True),
        ("1.9.0", "1.10.0", False),
        ("v1.3.0", "1.2.0-rc1", True),
        ("", "1.2.0", False),
        ("nightly", "1.2.0", False),
        ("1.3.0", "nightly", False),
    ],
)
def test_a_downgrade_over_a_minor_version_is_refused(running: str, wanted: str, refused: bool) -> None:
    status = BookieClusterStatus.model_validate({"version": {"current": running}})
    faults = validate(parsed(version=wanted), status)
    assert bool(faults) == refused
    for fault in faults:
        assert fault.startswith(f"spec.version: {wanted} is older than {running}")
        assert fault.endswith("set it back")


def test_values_of_keys_and_variables_are_not_told() -> None:
    secret = "hunter2"
    spec = parsed(
        config={"httpServerKeyStorePassword": "${" + secret + "}", "gcWaitTime": secret, "nokey": secret},
        pod={"env": [{"name": "BK_bookieId", "value": secret}, {"value": secret}]},
    )
    faults = validate(spec, NOTHING)
    assert len(faults) == 5
    assert secret not in "".join(faults)


@pytest.mark.parametrize("wrong", ["newer", "replicas"])
def test_a_field_that_is_not_known_is_left_out_of_a_spec_of_any_depth(wrong: str) -> None:
    """What is freeform is as deep as people like."""
    affinity: dict[str, Any] = {}
    for _ in range(800):
        affinity = {"a": affinity}
    spec, before = ({**minimal(pod={"affinity": affinity, "newer": 1}), wrong: "many"} for _ in range(2))
    kept, told = known_spec(spec)
    assert "newer" not in kept["pod"]
    assert kept["pod"]["affinity"] is affinity
    assert (wrong in kept, len(told)) == ((False, 2) if wrong == "newer" else (True, 1))
    assert (list(spec), list(spec["pod"])) == (list(before), list(before["pod"]))


def test_messages_are_bounded() -> None:
    spec = parsed(config={f"unknownKey{number}": "x" for number in range(50)})
    faults = validate(spec, NOTHING)
    assert len(faults) == MESSAGES
    assert faults[-1] == "and 31 more; mend these first"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (minimal(storage={"journal": {"size": "1Gi"}}), "spec.storage.ledger: is required; give it"),
        (minimal(replica=3), "spec.replica: there is no such field; did you mean replicas?"),
        (
            minimal(storage={"journal": {"size": "1Gi", "volume": 2}, "ledger": {"size": "1Gi"}}),
            "spec.storage.journal.volume: there is no such field; did you mean volumes?",
        ),
        (
            minimal(placement={"zones": [{"name": "a", "replicass": 1}]}),
            "spec.placement.zones[0].replicass: there is no such field; did you mean replicas?",
        ),
        (minimal(zzzz=1), "spec.zzzz: there is no such field; remove it, or upgrade the operator"),
        (minimal(replicas="many"), "spec.replicas: input should be a valid integer"),
        (minimal(metadataService={"type": "Magic"}), "spec.metadataService.type: input should be 'External',"),
    ],
)
def test_what_cannot_be_read(spec: dict[str, Any], message: str) -> None:
    typed, (told,) = parse_spec(spec)
    assert typed is None
    assert told.startswith(message)
    assert "many" not in told
    assert "Magic" not in told


def test_a_status_that_cannot_be_read_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(ValueError, match=r"status\.operation\.type: .*newer"):
        parse_status({"operation": {"id": "Magic-1", "type": "Magic", "step": "x"}})
    assert parse_status({}) == NOTHING
