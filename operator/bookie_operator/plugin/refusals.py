"""Obstacles to taking bookies over in place, each with what to do about it, in one line.

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bookie_operator.api.kinds import KubernetesObject, key_of
from bookie_operator.builders import in_place, naming
from bookie_operator.builders.claims import volume_sizes
from bookie_operator.builders.common import controller_of, is_own, owner_of
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.plugin.takeover import Sight, is_ready


def refusals(sight: Sight, told: Mapping[str, Mapping[str, str]], ours: Mapping[str, str]) -> list[str]:
    """Return the refusals before the StatefulSet is taken away. `told`: the configuration of pods that tell it; `ours`:
    of the cluster."""
    owner, spec = sight.foreign, sight.seen.cluster.spec
    if owner is None:
        return [f"there is no StatefulSet {sight.set_name} in this namespace: is the BookieCluster named after it?"]
    found = [f"spec is wrong: {each}" for each in sight.seen.world.spec_errors]
    for key, each in {**sight.named, key_of(owner): owner}.items():
        if not is_own(each, sight.seen.cluster) and controller_of(each):
            found.append(f"{key}: {owner_of(each)}, which would make it again: stop that operator first")
    others = sight.seen.world.taken.keys() - {*sight.named, key_of(owner)}
    found += [f"{key} has another owner, and is not handed over: give it another name" for key in sorted(others)]
    if owner["spec"].get("serviceName") != sight.set_name:
        found.append(
            f"the Service of StatefulSet {sight.set_name} is {owner['spec'].get('serviceName')}, and the host names of"
            f" yours would be those of {sight.set_name}: move these bookies beside"
        )
    service = sight.named.get(f"Service/{sight.set_name}")
    if service is not None and service["spec"].get("clusterIP") != "None":
        found.append(
            f"Service {sight.set_name} has an address of its own, which a Service that names bookies has not, and it"
            " cannot be taken away: move these bookies beside"
        )
    replicas = int(owner["spec"].get("replicas", 1))
    if replicas != spec.replicas:
        found.append(f"StatefulSet {sight.set_name} has {replicas} replicas: set spec.replicas to {replicas}")
    for ordinal in range(replicas):
        found += _pod_refusals(sight, naming.pod(sight.set_name, ordinal))
    for pod, config in sorted(told.items()):
        found += _config_refusals(sight, pod, config, ours)
    return found


def _pod_refusals(sight: Sight, name: str) -> Iterator[str]:
    pod = sight.pods.get(name)
    if pod is None or not is_ready(pod):
        yield f"pod {name} is not ready: bring it up first"
        return
    volumes = {
        each["persistentVolumeClaim"]["claimName"]: each["name"]
        for each in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in each
    }
    for kind, claim in sight.claims_of(name):
        path = in_place.mount_path(sight.seen.cluster.spec, kind, 0)
        live = sight.claims.get(claim)
        if live is None or claim not in volumes:
            shown = ", ".join(sorted(volumes)) or "none"
            yield f"pod {name} has no claim {claim}; it has {shown}: set spec.bootstrap.inPlace.{kind}.claim"
        elif "deletionTimestamp" in live["metadata"] or (live.get("status") or {}).get("phase") != "Bound":
            yield f"claim {claim} is not bound, or is being deleted: copy its bookie's data to another one first"
        elif path not in (mounted := _mounts(pod, volumes[claim])):
            where = ", ".join(mounted) or "nowhere"
            yield f"claim {claim} is mounted at {where}: set spec.bootstrap.inPlace.{kind}.mountPath"
        else:
            yield from _owner_refusals(sight, live)
            asked = volume_sizes(sight.seen.cluster.spec.storage)[kind]
            has = live["spec"]["resources"]["requests"]["storage"]
            if (known_bytes(asked) or 0) > (known_bytes(has) or 0):
                yield f"claim {claim} has {has}: set spec.storage.{kind}.size to {has}, and grow it afterwards"
            yield from (
                f"claim {claim} is used by pod {other['metadata']['name']} too: stop that one first"
                for other in sight.others
                if any(
                    (each.get("persistentVolumeClaim") or {}).get("claimName") == claim
                    for each in other["spec"].get("volumes") or ()
                )
            )


def _owner_refusals(sight: Sight, claim: KubernetesObject) -> Iterator[str]:
    """Kubernetes deletes it with its owner. Once the old StatefulSet is deleted without it, that owns nothing."""
    sets = sight.foreign["metadata"]["uid"] if sight.foreign is not None else ""
    for each in claim["metadata"].get("ownerReferences") or ():
        if each["uid"] != sets:
            yield (
                f"claim {claim['metadata']['name']} belongs to {each['kind']} {each['name']}, and goes with that:"
                " remove its ownerReferences first"
            )


def _mounts(pod: KubernetesObject, volume: str) -> list[str]:
    """Return where it is mounted as a whole."""
    return [
        each["mountPath"].rstrip("/")
        for container in pod["spec"]["containers"]
        for each in container.get("volumeMounts") or ()
        if each["name"] == volume and not each.get("subPath") and not each.get("subPathExpr")
    ]


_ON_DISK: Final = ("journalDirectories", "ledgerDirectories", "indexDirectories", "bookiePort", "ledgerStorageClass")
"""Keys that cookies and directories depend on."""


def _config_refusals(sight: Sight, pod: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> Iterator[str]:
    for key in _ON_DISK:
        there, here = theirs.get(key, "").strip(), ours.get(key, "")
        if there and there != here and not (key == "indexDirectories" and there == ours["ledgerDirectories"]):
            yield f"{pod} has {key}={there}, and yours {here or 'none'}: {_remedy(key)}"
    host = f"{pod}{in_place.host_suffix(sight.seen.cluster)}"
    given = theirs.get("bookieId") or ""
    address = theirs.get("advertisedAddress") or ""
    by_name = theirs.get("useHostNameAsBookieID") == "true" and theirs.get("useShortHostName") != "true"
    if (
        (given and given != f"{host}:{naming.BOOKIE_PORT}")
        or (address and address != host)
        or not (given or address or by_name)
    ):
        known = given or address or "its address or its short name"
        yield (
            f"the id of {pod} is {known}, and as yours it would be {host}:{naming.BOOKIE_PORT}: give it that one first"
            " with `bookie cluster rename-bookie`, or move it beside"
        )


def _remedy(key: str) -> str:
    if key == "ledgerStorageClass":
        return "set spec.config.ledgerStorageClass to it"
    kind = {"journalDirectories": naming.JOURNAL, "ledgerDirectories": naming.LEDGER}.get(key)
    if kind is not None:
        return f"set spec.bootstrap.inPlace.{kind}.directories to it"
    return "it cannot be taken over in place; move it beside"
