"""Bookies in the metadata root of a cluster that are not the cluster's own.

It says which they are, how far their drains are, which pods they have, and where their configuration and the cluster's
do not go together.

Their pods are found by what is in a bookie's id: `POD.SERVICE.NAMESPACE...`, or a pod's address in the cluster's own
namespace. They are asked over forwarded ports, by plain HTTP, and never shown the cluster's token.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from bookie_operator.api.admin import Admin, Endpoint
from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import POD, STATEFUL_SET, KubernetesObject
from bookie_operator.builders import naming
from bookie_operator.plugin.clusters import domain_of, list_clusters, status_of
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.forwarding import PORT, opener, session_to
from bookie_operator.world.facts import ClusterFacts, DrainFacts, DrainPhase

_HOST: Final = re.compile(r"(?P<pod>[a-z0-9-]+)\.[a-z0-9-]+\.(?P<namespace>[a-z0-9-]+)(\..*)?")
_NUMBERED: Final = re.compile(r".+-(?P<ordinal>[0-9]{1,9})")
_FRAME: Final = "nettyMaxFrameSizeBytes"
_DEFAULT_FRAME: Final = "5253120"
_ASK_S: Final = 15.0


class Stage(StrEnum):
    """The next step for a bookie that is not the cluster's own; the first two are to do, the next two are under way."""

    TO_DRAIN = "to drain"
    STOPPED = "interrupted"
    """The drain was begun, and no process works on it."""
    DRAINING = "draining"
    UNDOING = "being taken back"
    TO_REMOVE = "to remove"
    """Drained, proven, and without a cookie; its process is there."""


@dataclass(frozen=True)
class Place:
    """The pod of a bookie, and the StatefulSet that made it."""

    namespace: str
    pod: str
    address: str = ""
    stateful_set: str = ""
    """Empty: none did."""
    replicas: int = 0
    ordinal: int = -1


@dataclass(frozen=True)
class Stranger:
    """A bookie that is none of the cluster's, and has a cookie or is registered."""

    bookie_id: str
    mode: str
    """writable, read-only or down."""
    has_cookie: bool
    drain: DrainFacts | None
    """Drain; None: unknown."""
    place: Place | None = None
    """None: its pod was not found."""
    owner: str = ""
    """The other BookieCluster that it belongs to, as `NAMESPACE/NAME`."""

    @property
    def stage(self) -> Stage | None:
        """The next step; None: unknown."""
        if self.drain is None:
            return None
        match self.drain.phase:
            case DrainPhase.RUNNING | DrainPhase.BLOCKED:
                return Stage.DRAINING
            case DrainPhase.INTERRUPTED:
                return Stage.UNDOING if "taken back" in self.drain.message else Stage.STOPPED
            case DrainPhase.DRAINED if not self.has_cookie and self.mode != "writable":
                return Stage.TO_REMOVE
        return Stage.TO_DRAIN  # also one that has come back since it was taken out


async def find_strangers(
    api: Api, facts: ClusterFacts, own: frozenset[str], drains: Mapping[str, DrainFacts | None]
) -> list[Stranger]:
    """Return the bookies in the order in which they are to go: of a StatefulSet the highest number first, as it removes
    that one first.

    `facts` are newer than `drains`: a bookie that was drained has no cookie any more.
    """
    ids = sorted((facts.registered | facts.cookies) - own)
    owners, places = await _owners(api, ids), await _places(api, ids)
    found = [
        Stranger(
            bookie_id,
            "writable" if bookie_id in facts.writable else "read-only" if bookie_id in facts.read_only else "down",
            bookie_id in facts.cookies,
            drains.get(bookie_id),
            places.get(bookie_id),
            owners.get(bookie_id, ""),
        )
        for bookie_id in ids
    ]
    return sorted(found, key=_turn)


def _turn(stranger: Stranger) -> tuple[str, str, int, str]:
    place = stranger.place or Place("", "")
    return place.namespace, place.stateful_set, -place.ordinal, stranger.bookie_id


def out_of_turn(chosen: Sequence[Stranger], everybody: Sequence[Stranger]) -> str:
    """Return why these may not be the next ones to go; empty: they may.

    A StatefulSet that is scaled down removes its highest number, whichever bookie was drained.
    """
    ids = {each.bookie_id for each in chosen}
    left = [each for each in everybody if each.bookie_id not in ids and each.stage is not Stage.TO_REMOVE]
    for each in chosen:
        for other in left:
            mine, its = each.place, other.place
            if mine is None or its is None or not mine.stateful_set:
                continue
            same = (mine.namespace, mine.stateful_set) == (its.namespace, its.stateful_set)
            if same and its.ordinal > mine.ordinal:
                return (
                    f"{other.bookie_id} has to go before {each.bookie_id}: StatefulSet {its.stateful_set} removes the"
                    " pod with the highest number first"
                )
    return ""


def removal(stranger: Stranger) -> str:
    """Return what its owner does with the pod of one that is taken out."""
    place = stranger.place
    if place is None:
        return f"stop {stranger.bookie_id} for good, and remove its volumes"
    if not place.stateful_set:
        return f"delete pod {place.pod} in namespace {place.namespace} for good, and its volumes"
    if place.ordinal >= place.replicas:
        return "wait until its pod has ended; then delete its claims"
    command = f"kubectl -n {place.namespace} scale statefulset {place.stateful_set} --replicas={place.replicas - 1}"
    if place.ordinal < place.replicas - 1:
        return (
            f"StatefulSet {place.stateful_set} in namespace {place.namespace} has {place.replicas} replicas, of which"
            f" {place.pod} is not the last: scale it down to {place.ordinal} only when those above are taken out too"
        )
    return f"`{command}`, and the same number in the chart's values; then delete the claims of {place.pod}"


async def _owners(api: Api, ids: Sequence[str]) -> dict[str, str]:
    """The owners of bookies that the operator keeps for another resource, as far as they may be read."""
    try:
        clusters = await list_clusters(api, everywhere=True)
    except Forbidden:
        clusters = await list_clusters(api)
    found: dict[str, str] = {}
    for each in clusters:
        namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
        told = {bookie.bookie_id for bookie in status_of(each).bookies}
        suffix = naming.bookie_id_suffix(
            name, namespace, domain_of(each)
        )  # of one that came just now its status does not tell yet
        found |= {one: f"{namespace}/{name}" for one in ids if one in told or one.endswith(suffix)}
    return found


async def _places(api: Api, ids: Sequence[str]) -> dict[str, Place]:
    """The places of those whose pods are found."""
    found: dict[str, Place] = {}
    by_address: dict[str, KubernetesObject] | None = None
    for bookie_id in ids:
        host = bookie_id.rpartition(":")[0] or bookie_id
        named = _HOST.fullmatch(host)
        try:
            if named is not None and not host.replace(".", "").isdigit():
                pod = await api.kubernetes.find(POD, named["namespace"], named["pod"])
            else:
                if by_address is None:
                    pods = await api.kubernetes.list(POD, api.namespace)
                    by_address = {str((each.get("status") or {}).get("podIP")): each for each in pods}
                pod = by_address.get(host.strip("[]"))
            if pod is not None:
                found[bookie_id] = await _place(api, pod)
        except Forbidden:
            continue
    return found


async def _place(api: Api, pod: KubernetesObject) -> Place:
    metadata = pod["metadata"]
    place = Place(metadata["namespace"], metadata["name"], str((pod.get("status") or {}).get("podIP") or ""))
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("kind") == "StatefulSet"]
    numbered = _NUMBERED.fullmatch(place.pod)
    if not owners or numbered is None:
        return place
    try:
        stateful_set = await api.kubernetes.find(STATEFUL_SET, place.namespace, owners[0]["name"])
    except Forbidden:
        stateful_set = None
    if stateful_set is None:
        return place
    replicas = int(stateful_set["spec"].get("replicas", 1))
    return replace(place, stateful_set=owners[0]["name"], replicas=replicas, ordinal=int(numbered["ordinal"]))


# --- what goes together ---------------------------------------------------------------------------------------


async def settings_of(api: Api, strangers: Sequence[Stranger]) -> dict[str, Mapping[str, str]]:
    """The configuration of each that tells it, as far as it is not the default."""

    async def ask(place: Place) -> Mapping[str, str] | None:
        there = replace(api, namespace=place.namespace)
        pod: dict[str, Any] = {"metadata": {"name": place.pod}, "status": {"podIP": place.address}}
        async with session_to([pod], opener(there)) as session:
            return await Admin(session, timeout_s=_ASK_S).settings(Endpoint(place.pod, place.address, PORT))

    reached = [(each.bookie_id, each.place) for each in strangers if each.place is not None and each.place.address]
    told = await asyncio.gather(*(ask(place) for _, place in reached))
    return {bookie_id: config for (bookie_id, _), config in zip(reached, told, strict=True) if config is not None}


def differences(whose: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return what has to be mended first, and what to think of: clients speak to both kinds of bookie in one way."""
    refusals, notes = [], []
    their_frame, our_frame = (_whole(each.get(_FRAME) or _DEFAULT_FRAME) for each in (theirs, ours))
    if their_frame > our_frame:
        refusals.append(
            f"{whose} takes frames of {their_frame} bytes and yours of {our_frame}: set spec.config.{_FRAME} to"
            f' "{their_frame}", else its largest entries cannot be copied'
        )
    their_tls, our_tls = (bool(each.get("tlsProviderFactoryClass")) for each in (theirs, ours))
    if their_tls and not our_tls:
        refusals.append(f"{whose} serves TLS and yours do not: set spec.tls, with an authority that the clients trust")
    if our_tls and not their_tls:
        notes.append(f"yours serve TLS and {whose} does not: clients that demand it cannot use that one")
    key = "bookieAuthProviderFactoryClass"
    if theirs.get(key) and theirs.get(key) != ours.get(key):
        notes.append(f"{whose} has {key}={theirs[key]}: clients show yours what these demand, or nothing")
    notes += [
        f"{whose} has {key}={theirs[key]}, yours {ours.get(key) or 'the default'}: copies go by yours"
        for key in ("reppDnsResolverClass", "ensemblePlacementPolicy")
        if theirs.get(key) and theirs.get(key) != ours.get(key)
    ]
    return refusals, notes


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
