"""The desired state, as far as a plan depends on it: names and hashes of the objects that the builders make of `spec`.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, order=True)
class Evictions:
    """The evictions that the PodDisruptionBudget allows."""

    count: int
    """Bookies that may be evicted at a time."""
    zone: str = ""
    """Zone of which all bookies may be evicted as well, at once; empty: of none."""


ONE_BOOKIE: Final = Evictions(1)


@dataclass(frozen=True)
class DesiredStatefulSet:
    name: str
    zone: str
    """Empty: the cluster has no zones."""
    replicas: int
    template_hash: str
    """Hash of the pod template that this release makes; after `holding.hold` of the one that is to be now."""
    volume_sizes: Mapping[str, str]
    """Sizes by kind of volume."""
    config_hash: str = ""
    inputs_hash: str = ""
    """Hash of what people asked for, as far as the template depends on it; see `holding`."""
    volume_attributes: Mapping[str, str] | None = None
    """VolumeAttributesClass by kind of volume, of those that have one; None: this Kubernetes knows no such classes."""
    volume_classes: Mapping[str, str] = field(default_factory=dict)
    """Storage class by kind of volume, of those that name one."""


@dataclass(frozen=True)
class DesiredDeployment:
    """One that reads the bookies' configuration."""

    key: str = ""
    """`Deployment/name`; empty: there is none."""
    object_hash: str = ""
    """Hash of the template; after `holding.hold` that of the Deployment that there is, if it has to wait."""
    inputs: str = ""
    """Inputs from people, as far as it depends on them, a slash, and the number of its pods; see `holding`."""
    keeps_template: bool = False
    """True after `holding.hold` if the bookies come first, so that nothing of it changes but the number of its pods."""


@dataclass(frozen=True)
class DesiredMembers:
    """The etcd that the operator runs."""

    stateful_set: str
    template_hash: str
    """Hash of the pod template."""
    peer_urls: Mapping[str, str]
    """Address among members by pod name, for each member."""
    quota: int
    """Bytes that its database may have."""


@dataclass(frozen=True)
class Desired:
    stateful_sets: tuple[DesiredStatefulSet, ...]
    support: Mapping[str, str]
    """`Kind/name` to hash, in the order in which they are applied: everything that may be there before the bookies,
    but for the budget of bookies and the Deployments."""
    metadata_job: str
    """`Job/name` of what initialises the metadata."""
    metadata_job_hash: str
    budget: str
    """`PodDisruptionBudget/name`; empty: there is none."""
    budget_hashes: Mapping[Evictions, str] = field(default_factory=dict)
    """Hash of the budget for everything that it may allow: none, as many as `spec` says, a whole zone."""
    autorecovery: DesiredDeployment = DesiredDeployment()
    gateway: DesiredDeployment = DesiredDeployment()
    backup: str = ""
    """`CronJob/name` of what backs the metadata up; empty: there is none."""
    backup_hash: str = ""
    backup_claim: str = ""
    """`PersistentVolumeClaim/name` of the claim for the files; empty: the user brings one. Once it is there nothing
    changes it."""
    monitoring: Mapping[str, str] = field(default_factory=dict)
    """Objects like those of `support`; applied last."""
    dynamic_config: Mapping[str, str] = field(default_factory=dict)
    """Keys that a running bookie takes without a restart; not counted in `template_hash`. Those that `spec.config`
    does not name have their defaults here, so that a key that was taken out is put back."""
    given_config: frozenset[str] = frozenset()
    """Keys of `dynamic_config` that `spec.config` names. A bookie that does not tell one of the others runs with its
    own default, or is too old to know it."""
    settings: str = ""
    """`ConfigMap/name` of what a bookie takes at its next start without being restarted for it, `given_config` among
    it; also in `support`. While its hash differs there may be bookies that run with other values."""
    check_job: str = ""
    """`Job/name` of what looks for the metadata where `spec` says now that they are; empty: they are known to be
    there."""
    check_job_hash: str = ""
    moves_to: str = ""
    """URI of that place, with the root."""
    bookie_ids: Mapping[str, str] = field(default_factory=dict)
    """Bookie id by pod name, for every pod that there is or should be; for others see `bookie_id`."""
    bookie_id_suffix: str = ""
    held: frozenset[str] = frozenset()
    """Names of StatefulSets whose newest template waits; see `holding`."""
    issued: tuple[str, ...] = ()
    """Names of Secrets that pods mount and cert-manager fills, each by a Certificate of the same name in `support`,
    unless this Kubernetes has no cert-manager."""
    missing: tuple[str, ...] = ()
    """Kinds that `spec` asks for and this Kubernetes does not know, each with its remedy: everything else goes on
    without."""
    members: DesiredMembers | None = None
    """None: the operator runs no etcd."""

    @property
    def deployments(self) -> Mapping[str, str]:
        """`Deployment/name` to hash, of those that should be; applied after the bookies."""
        return {one.key: one.object_hash for one in (self.autorecovery, self.gateway) if one.key}

    def bookie_id(self, pod: str) -> str:
        """`POD.SERVICE.NAMESPACE.svc:PORT`."""
        return self.bookie_ids.get(pod) or f"{pod}{self.bookie_id_suffix}"
