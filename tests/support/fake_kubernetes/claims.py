"""What an API server and a driver make of PersistentVolumeClaims: their rules, and changes of volumes in use."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_operator.api.kinds import CLAIM, STATEFUL_SET, VOLUME_ATTRIBUTES_CLASS, Resource
from tests.support.fake_kubernetes.objects import Object
from tests.support.fake_kubernetes.store import Refused, Store

_NAME = "volumeAttributesClassName"


@dataclass
class ClaimRules:
    """Judges what is about to be stored."""

    drops_classes: bool = False
    """As with the feature VolumeAttributesClass disabled: names of classes are dropped, and nobody says so."""

    def __call__(self, resource: Resource, new: Object, live: Object | None) -> None:
        if resource == STATEFUL_SET and live is not None and _templates(new) != _templates(live):
            raise Refused(422, "Invalid", "updates to statefulset spec for fields other than ... are forbidden")
        if resource == CLAIM:
            self._judge(new, live)

    def _judge(self, new: Object, live: Object | None) -> None:
        if self.drops_classes and not (live or {"spec": {}})["spec"].get(_NAME):
            new["spec"].pop(_NAME, None)
        if live is None or new["spec"].get(_NAME) == live["spec"].get(_NAME):
            return
        status = live.get("status") or {}
        if status.get("phase") != "Bound":
            raise Refused(422, "Invalid", "spec is immutable after creation except for bound claims")
        if status.get("currentVolumeAttributesClassName") and not new["spec"].get(_NAME):
            raise Refused(
                422,
                "Invalid",
                f"spec.{_NAME}: update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            )


def _templates(stateful_set: Object) -> object:
    return stateful_set["spec"].get("volumeClaimTemplates")


@dataclass
class Driver:
    """That changes volumes as their claims ask for, if the class is there."""

    store: Store
    modifies: bool = True
    """False: no sidecar runs that would."""
    refused: dict[str, str] = field(default_factory=dict)
    """Classes that it refuses, with its words."""

    def accepts(self, claim: Object) -> bool:
        """Whether a volume can be made for it."""
        name = claim["spec"].get(_NAME)
        return not name or (name not in self.refused and self._exists(name))

    def status_of(self, claim: Object) -> Object:
        """What becomes of a bound claim; empty: it stays as it is."""
        name, status = claim["spec"].get(_NAME), claim.get("status") or {}
        if name == status.get("currentVolumeAttributesClassName"):
            settled: Object = {"modifyVolumeStatus": None, "conditions": []}
            return settled if status.get("modifyVolumeStatus") else {}
        if not self.modifies or not name:
            return {}
        if not self._exists(name):
            return {"modifyVolumeStatus": {"targetVolumeAttributesClassName": name, "status": "Pending"}}
        if name in self.refused:
            problem = {"type": "ModifyVolumeError", "status": "True", "message": self.refused[name]}
            target = {"targetVolumeAttributesClassName": name, "status": "Infeasible"}
            return {"modifyVolumeStatus": target, "conditions": [problem]}
        return {"currentVolumeAttributesClassName": name, "modifyVolumeStatus": None, "conditions": []}

    def _exists(self, name: str) -> bool:
        return self.store.find(VOLUME_ATTRIBUTES_CLASS, "", name) is not None
