"""The CustomResourceDefinitions, made of the typed sources and the rules.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.job_rules import JOB_RULES
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.crds.rules import CLUSTER_RULES, TASK_RULES, Rule, with_rules
from bookie_operator.crds.schema import Schema, structural_schema
from bookie_operator.crds.task_spec import BookieTaskSpec, BookieTaskStatus

Column = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One custom resource."""

    kind: str
    plural: str
    singular: str
    short: str
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    rules: tuple[Rule, ...]
    columns: tuple[Column, ...]
    scalable: bool = False

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{names.GROUP}"


def _column(name: str, path: str, description: str, *, kind: str = "string", priority: int = 0) -> Column:
    column: Column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    if priority:
        column["priority"] = priority
    return column


def _ready(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


_AGE: Final = _column("Age", ".metadata.creationTimestamp", "Since it was created", kind="date")

CLUSTER: Final = Kind(
    kind="BookieCluster",
    plural="bookieclusters",
    singular="bookiecluster",
    short="bkc",
    description="A cluster of bookies: storage nodes of Apache BookKeeper.",
    spec=BookieClusterSpec,
    status=BookieClusterStatus,
    rules=CLUSTER_RULES,
    columns=(
        _column("Ready", _ready("status"), "Everything is as spec says, and healthy"),
        _column("Bookies", ".status.readyReplicas", "Bookies that serve", kind="integer"),
        _column("Desired", ".spec.replicas", "Bookies that there should be", kind="integer"),
        _column("Writable", ".status.writableReplicas", "Bookies that take new entries", kind="integer"),
        _column("UnderRepl", ".status.ledgers.underReplicated", "Ledgers with too few copies", kind="integer"),
        _column("Version", ".status.version.current", "What every bookie runs"),
        _column("Status", _ready("reason"), "Why it is ready, or not"),
        _AGE,
        _column("Operation", ".status.operation.type", "What is under way", priority=1),
        _column("Step", ".status.operation.step", "Its step", priority=1),
        _column("Target", ".status.operation.bookie", "The bookie that it is about", priority=1),
        _column(
            "Backup",
            ".status.backup.lastSuccessfulTime",
            "When the metadata were backed up last",
            kind="date",
            priority=1,
        ),
        _column("Message", _ready("message"), "What it waits for, or what is wrong", priority=1),
    ),
    scalable=True,
)

TASK: Final = Kind(
    kind="BookieTask",
    plural="bookietasks",
    singular="bookietask",
    short="bkt",
    description="Work on a BookieCluster that is asked for once.",
    spec=BookieTaskSpec,
    status=BookieTaskStatus,
    rules=TASK_RULES,
    columns=(
        _column("Cluster", ".spec.cluster", "The BookieCluster"),
        _column("Type", ".spec.type", "What is to be done"),
        _column("Bookies", ".spec.bookies", "With which of them"),
        _column("Phase", ".status.phase", "How far it is"),
        _AGE,
        _column("Message", ".status.message", "What it waits for, or how it ended", priority=1),
    ),
)

JOB: Final = Kind(
    kind="BookieJob",
    plural="bookiejobs",
    singular="bookiejob",
    short="bkj",
    description="A job of Spark on the ledgers of a BookieCluster, once or on a schedule.",
    spec=BookieJobSpec,
    status=BookieJobStatus,
    rules=JOB_RULES,
    columns=(
        _column("Cluster", ".spec.clusterRef.name", "The BookieCluster"),
        _column("Kind", ".spec.kind", "The job"),
        _column("Schedule", ".spec.schedule", "When it runs; empty: once"),
        _column("Suspend", ".spec.suspend", "No new run begins", kind="boolean"),
        _column("Phase", ".status.phase", "What it does"),
        _column("Last-Outcome", ".status.lastOutcome", "How the last run ended"),
        _column("Last-Schedule", ".status.lastScheduleTime", "When a run was due last", kind="date"),
        _AGE,
        _column("Message", _ready("message"), "What it waits for, or what is wrong", priority=1),
    ),
)

KINDS: Final[tuple[Kind, ...]] = (CLUSTER, JOB, TASK)
"""Kinds, in the order of their names."""


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition."""
    subresources: dict[str, Any] = {"status": {}}
    if kind.scalable:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd_name, "labels": {names.NAME: "podkeeper", names.PART_OF: "podkeeper"}},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short],
                "categories": ["bookkeeper"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(kind.columns),
                    "subresources": subresources,
                    "schema": {"openAPIV3Schema": resource_schema(kind)},
                }
            ],
        },
    }


def resource_schema(kind: Kind) -> Schema:
    """The schema of the whole resource, with its rules."""
    schema: Schema = {
        "type": "object",
        "description": kind.description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "maxLength": 253},
            "kind": {"type": "string", "maxLength": 63},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 253}}},
            "spec": structural_schema(kind.spec),
            "status": structural_schema(kind.status, defaults=False),
        },
    }
    return with_rules(schema, kind.rules)
