"""The simulated Kubernetes: StatefulSets whose controller lags, pods that take their time, claims, nodes.

Deletions and scalings are refused with `Conflict` unless UID and resource version are those that are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookie_operator.world.model import ModifyState, PodFault, ResizeState

CONTROLLER_LAG: Final = 1.0
START_SECONDS: Final = 3.0
STOP_SECONDS: Final = 2.0
RESIZE_SECONDS: Final = 4.0
MODIFY_SECONDS: Final = 20.0
BAD_CLASS: Final = "refused"
"""The driver refuses a VolumeAttributesClass of this name."""
BAD_IMAGE: Final = "broken"
"""Pods with an image of this name never start."""
BROKEN: Final = {
    BAD_IMAGE: PodFault.IMAGE,
    "cannot-mount": PodFault.VOLUME,
    "other-directories": PodFault.COOKIE,
    "wrong-flags": PodFault.CRASHING,
    "fits-nowhere": PodFault.UNSCHEDULABLE,
}
"""What becomes of pods with such an image, which stands for the whole template; `NAME@2`: of those with ordinal 2."""

_BROKEN_ANYWHERE: Final = frozenset({BAD_IMAGE, "wrong-flags"})
"""Not only pods of bookies do not run with these."""


class Conflict(Exception):
    """What the operator saw is not there any more."""


@dataclass
class SimSet:
    name: str
    zone: str
    uid: str
    replicas: int
    template_hash: str
    image: str
    config_maps: frozenset[str]
    volume_sizes: dict[str, str]
    inputs_hash: str = ""
    restart: str = ""
    volume_attributes: dict[str, str] = field(default_factory=dict)
    volume_classes: dict[str, str] = field(default_factory=dict)
    resource_version: int = 1
    generation: int = 1
    observed_generation: int = 0
    changed_at: float = 0.0

    def touch(self, now: float) -> None:
        self.resource_version += 1
        self.generation += 1
        self.changed_at = now


@dataclass
class SimPod:
    name: str
    uid: str
    stateful_set: str
    ordinal: int
    template_hash: str
    image: str
    config_maps: frozenset[str]
    node: str
    owner_uid: str
    created_at: float
    starts_at: float
    running: bool = False
    ready_since: float | None = None
    fault: PodFault = PodFault.NONE
    gone_at: float | None = None
    """It is being stopped."""
    config: dict[str, str] = field(default_factory=dict)


def fault_of_template(pod: SimPod) -> PodFault:
    kind, _, ordinal = pod.image.partition("@")
    return BROKEN.get(kind, PodFault.NONE) if ordinal in ("", str(pod.ordinal)) else PodFault.NONE


@dataclass
class SimClaim:
    name: str
    uid: str
    bookie: str
    volume: str
    requested: str
    actual: str
    instance_id: str
    data_id: str | None = None
    """What is on it; None: it is empty."""
    lost: bool = False
    deleting: bool = False
    foreign: bool = False
    """It does not have the labels of the cluster's claims."""
    adoption: bool = False
    kept_by: str = ""
    """A finalizer that keeps it when it is deleted; empty: none does."""
    retired_proof: str = ""
    resized_at: float | None = None
    resize: ResizeState = ResizeState.NONE
    attributes: str = ""
    """VolumeAttributesClass that it asks for."""
    current_attributes: str = ""
    modified_at: float | None = None
    modify: ModifyState = ModifyState.NONE
    storage_class: str = ""


@dataclass
class SimDeployment:
    """One beside the bookies."""

    since: float | None = None
    """None: there is none."""
    inputs: str = ""
    gone_at: float = 0.0
    """When the pods of the one before are gone."""
    image: str = ""
    """Of the pods that there are."""
    newest: str = ""
    """Of those that are made from now on."""

    def up(self, now: float) -> bool:
        return self.since is not None and now - self.since >= START_SECONDS and self.image not in _BROKEN_ANYWHERE

    def give(self, image: str, now: float) -> None:
        """Pods that work go on until new ones do."""
        self.newest = image
        if self.since is None or image not in _BROKEN_ANYWHERE:
            self.since = now if self.since is None or self.image in _BROKEN_ANYWHERE else self.since
            self.image = image

    def restart(self, now: float) -> None:
        self.image, self.since = self.newest, None if self.since is None else now


@dataclass
class SimKubernetes:
    now: float = 0.0
    instance_id: str = ""
    """With which new claims are labelled."""
    objects: dict[str, tuple[str, str]] = field(default_factory=dict)
    """`Kind/name` to hash and UID."""
    sets: dict[str, SimSet] = field(default_factory=dict)
    pods: dict[str, SimPod] = field(default_factory=dict)
    claims: dict[str, SimClaim] = field(default_factory=dict)
    lost_nodes: set[str] = field(default_factory=set)
    out_of_service: set[str] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)
    stuck_sets: set[str] = field(default_factory=set)
    """StatefulSets whose controller does not answer."""
    room: int = 1000
    """Pods of bookies for which there are nodes."""
    quota: int = 1000
    """Pods of bookies that may be made at all."""
    silent: set[str] = field(default_factory=set)
    """Pods whose admin API does not answer."""
    unready: bool = False
    """No pod is ready, whatever it does."""
    faults: dict[str, PodFault] = field(default_factory=dict)
    """Why pods do not start, by name."""
    storage_class: str = ""
    """The default one, of claims that name none."""
    shared_disks: bool = False
    """Every volume is a folder of one file system."""
    expandable: bool = True
    missing_classes: set[str] = field(default_factory=set)
    """VolumeAttributesClasses that there are not."""
    changes_volumes: bool = True
    """The driver can give volumes another VolumeAttributesClass."""
    drops_classes: bool = False
    """The feature is off: claims do not keep what they ask for."""
    made: int = 0

    def uid(self) -> str:
        self.made += 1
        return f"uid-{self.made}"

    # --- controllers --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        for one in list(self.sets.values()):
            self._control(one)
        self._stop_pods()
        for pod in self.pods.values():
            if pod.gone_at is None and not pod.running and pod.fault is not PodFault.COOKIE:
                pod.fault = self._why_not_starting(pod)
        for claim in list(self.claims.values()):
            self._resize(claim)
            self._modify(claim)
            if claim.deleting and not claim.kept_by and claim.bookie not in self.pods:
                del self.claims[claim.name]

    def _control(self, one: SimSet) -> None:
        if one.name in self.stuck_sets:
            return
        if one.observed_generation < one.generation:
            if self.now - one.changed_at < CONTROLLER_LAG:
                return
            one.observed_generation = one.generation
        for pod in self.pods.values():
            if pod.stateful_set == one.name:
                pod.owner_uid = one.uid
                if pod.ordinal >= one.replicas:
                    self.stop_pod(pod)
        for ordinal in range(one.replicas):
            if f"{one.name}-{ordinal}" not in self.pods:
                self._create_pod(one, ordinal)

    def _create_pod(self, one: SimSet, ordinal: int) -> None:
        name = f"{one.name}-{ordinal}"
        if (
            any(claim.deleting for claim in self.claims.values() if claim.bookie == name)
            or len(self.pods) >= self.quota
        ):
            return
        for volume, size in one.volume_sizes.items():
            claim_name = f"{volume}-0-{name}"
            if claim_name not in self.claims:
                made = SimClaim(claim_name, self.uid(), name, volume, size, size, self.instance_id)
                made.attributes = made.current_attributes = one.volume_attributes.get(volume, "")
                made.storage_class = one.volume_classes.get(volume, self.storage_class)
                self.claims[claim_name] = made
        self.pods[name] = SimPod(
            name=name,
            uid=self.uid(),
            stateful_set=one.name,
            ordinal=ordinal,
            template_hash=one.template_hash,
            image=one.image,
            config_maps=one.config_maps,
            node=f"node-{one.zone}{ordinal}",
            owner_uid=one.uid,
            created_at=self.now,
            starts_at=self.now + START_SECONDS,
        )

    def is_refused(self, one: SimSet) -> bool:
        """A pod of it is missing, and the quota is full."""
        missing = any(f"{one.name}-{ordinal}" not in self.pods for ordinal in range(one.replicas))
        return missing and len(self.pods) >= self.quota

    def _why_not_starting(self, pod: SimPod) -> PodFault:
        if any(claim.lost for claim in self.claims_of(pod.name)):
            return PodFault.VOLUME
        if pod.node in self.cordoned or pod.node in self.lost_nodes:
            return PodFault.UNSCHEDULABLE
        placed = sum(one.running or one.fault is PodFault.NONE for one in self.pods.values() if one is not pod)
        if placed >= self.room:
            return PodFault.UNSCHEDULABLE
        if pod.name in self.faults:
            return self.faults[pod.name]
        return fault_of_template(pod)

    def _stop_pods(self) -> None:
        for pod in list(self.pods.values()):
            stuck = pod.node in self.lost_nodes and pod.node not in self.out_of_service
            if pod.gone_at is not None and self.now >= pod.gone_at and not stuck:
                del self.pods[pod.name]

    def _resize(self, claim: SimClaim) -> None:
        if claim.requested == claim.actual or claim.lost:
            return
        if claim.resized_at is None:
            claim.resized_at, claim.resize = self.now + RESIZE_SECONDS, ResizeState.RESIZING
        if self.now >= claim.resized_at:
            claim.actual, claim.resized_at, claim.resize = claim.requested, None, ResizeState.NONE

    def _modify(self, claim: SimClaim) -> None:
        """A class that is asked for no more is forgotten at once."""
        if self.drops_classes:
            claim.attributes = claim.current_attributes
        if claim.attributes == claim.current_attributes or claim.lost or not self.changes_volumes:
            claim.modified_at, claim.modify = None, ModifyState.NONE
        elif claim.attributes in self.missing_classes:
            claim.modified_at, claim.modify = None, ModifyState.PENDING
        elif claim.attributes == BAD_CLASS:
            claim.modified_at, claim.modify = None, ModifyState.FAILED
        elif claim.modified_at is None:
            claim.modified_at, claim.modify = self.now + MODIFY_SECONDS, ModifyState.IN_PROGRESS
        elif self.now >= claim.modified_at:
            claim.current_attributes, claim.modified_at, claim.modify = claim.attributes, None, ModifyState.NONE

    def stop_pod(self, pod: SimPod) -> None:
        if pod.gone_at is None:
            pod.gone_at = self.now + STOP_SECONDS
            pod.ready_since = None

    # --- what the operator and people do ------------------------------------------------------------------------------

    def the_set(self, name: str, resource_version: str) -> SimSet:
        found = self.sets.get(name)
        if found is None or str(found.resource_version) != resource_version:
            raise Conflict(f"StatefulSet {name}")
        return found

    def the_pod(self, name: str, uid: str) -> SimPod:
        found = self.pods.get(name)
        if found is None or found.uid != uid:
            raise Conflict(f"pod {name}")
        return found

    def the_claim(self, name: str, uid: str) -> SimClaim:
        found = self.claims.get(name)
        if found is None or found.uid != uid:
            raise Conflict(f"claim {name}")
        return found

    def claims_of(self, bookie: str) -> list[SimClaim]:
        return [one for one in self.claims.values() if one.bookie == bookie]

    def scale(self, name: str, replicas: int) -> None:
        """As `kubectl scale` does."""
        self.sets[name].replicas = replicas
        self.sets[name].touch(self.now)

    def kill_pod(self, name: str) -> None:
        """Its container dies and starts again."""
        pod = self.pods[name]
        pod.running, pod.ready_since, pod.starts_at = False, None, self.now + START_SECONDS

    def lose_volume(self, bookie: str, volume: str = "ledger") -> None:
        """The disk is gone, and the pod with it."""
        for claim in self.claims_of(bookie):
            if claim.volume == volume:
                claim.lost, claim.data_id = True, None
        if bookie in self.pods:
            self.stop_pod(self.pods[bookie])

    def delete_claims(self, bookie: str) -> None:
        """As `kubectl delete pvc,pod` does."""
        for claim in self.claims_of(bookie):
            claim.deleting, claim.data_id = True, None
        if bookie in self.pods:
            self.stop_pod(self.pods[bookie])

    def lose_node(self, node: str) -> None:
        self.lost_nodes.add(node)
        for pod in self.pods.values():
            if pod.node == node:
                pod.running = False
                self.stop_pod(pod)
