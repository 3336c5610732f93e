"""What is wrong with the configuration of the bookies, and with the parts of their pods: see `validation`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bookie_operator.crds import names
from bookie_operator.crds.config_keys import RESERVED, is_ignored, known_keys, nearest
from bookie_operator.crds.pod_spec import Pod

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
        elif (other := first.setdefault(known[name].name, name)) != name:
            yield f"{path}: it is another name of {other}, which is set too; remove one of them"
        elif fault := known[name].fault(text):
            yield f"{path}: {fault}; change the value"


def pod_faults(pod: Pod) -> Iterator[str]:
    """What the operator's own parts of the pods forbid, and what Kubernetes would refuse with less clear words."""
    for key in sorted(set(pod.resources) - _RESOURCES):
        yield f"spec.pod.resources.{key}: there is no such part; write it below requests or limits"
    yield from resource_faults("spec.pod.resources", pod.resources)
    for kind in sorted(pod.affinity):
        if not isinstance(pod.affinity[kind], Mapping):
            yield f"spec.pod.affinity.{kind}: must be a map, as `kubectl explain pod.spec.affinity` tells it"
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
