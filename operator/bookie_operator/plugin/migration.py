"""Facts and requests of `kubectl bookie migrate`.

A cluster has joined a metadata root, and the other bookies there are to be taken out, one after the other.

Everything that has to outlive a command is in the records of the decommissions, which bookies of the cluster carry out:
any later command finds out where it is.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bookie_operator.api.admin import Admin, AdminError, AdminRefused, Endpoint
from bookie_operator.api.kinds import KubernetesObject
from bookie_operator.builders import naming
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.quantity import readable
from bookie_operator.crds.validation import known_spec, parse_spec
from bookie_operator.observe.pods_facts import bookie_facts, cluster_facts, endpoints, tellers
from bookie_operator.observe.workloads import is_bookie
from bookie_operator.plugin.clusters import domain_of, find_cluster, pods_of, status_of
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.faults import Fault, RefusedFault
from bookie_operator.plugin.forwarding import PORT, opener, read_token, session_to, trust_of
from bookie_operator.plugin.strangers import Stranger, differences, find_strangers, settings_of
from bookie_operator.world.facts import ClusterFacts, DrainPhase, Outlook

SPACE_MARGIN: Final = 1.1
"""Entries take more room on disk than their payload."""
_ASK_S: Final = 30.0


@dataclass(frozen=True)
class View:
    """The root at one moment."""

    cluster: str
    status: BookieClusterStatus
    facts: ClusterFacts
    own: frozenset[str]
    """Ids of the cluster's bookies."""
    strangers: tuple[Stranger, ...]

    @property
    def ready(self) -> frozenset[str]:
        """Return the cluster's bookies that accept new data."""
        return self.own & self.facts.writable


@dataclass(frozen=True)
class Outlooks:
    """The bookies that are to be moved, and any blockers."""

    by_bookie: Mapping[str, Outlook | None] = field(default_factory=dict)
    """Outlooks by bookie; None: unknown."""
    free_bytes: int = 0
    """Bytes that the cluster's bookies may fill."""
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.by_bookie.values() if each is not None)


class Migration:
    """Asks the bookies of one cluster, as long as `migration` lasts."""

    def __init__(self, api: Api, cluster: KubernetesObject, admin: Admin, pods: list[KubernetesObject]) -> None:
        self._api = api
        self._cluster = cluster
        self._admin = admin
        self._bookies = tellers([pod for pod in pods if is_bookie(pod)], endpoints(pods, PORT))
        self._teller = Endpoint("", "")

    async def look(self) -> View:
        """Raises `Fault` if no bookie of the cluster tells, `RefusedFault` if the cluster is in no root yet."""
        name, status = self._cluster["metadata"]["name"], status_of(self._cluster)
        if not status.instance_id:
            raise RefusedFault(
                f"{name} has not joined a metadata root yet: to join that of other bookies set"
                " spec.metadataService.rootPath to it and spec.bootstrap.instanceId to its instance id, and wait"
            )
        facts = await self._facts(name)
        if facts.instance_id != status.instance_id:
            raise RefusedFault(
                f"{name} is of instance id {status.instance_id}, and its bookies find {facts.instance_id}: see"
                " InstanceMismatch in docs/operator-reasons.md"
            )
        suffix = naming.bookie_id_suffix(name, self._api.namespace, domain_of(self._cluster))
        known = {each.bookie_id for each in status.bookies if each.bookie_id}
        there = facts.registered | facts.cookies
        own = known | {each for each in there if each.endswith(suffix)}
        drains = {each: await self._admin.drain(self._teller, each) for each in sorted(there - own)}
        facts = await self._facts(name)
        strangers = await find_strangers(self._api, facts, frozenset(own), drains)
        return View(name, status, facts, frozenset(own), tuple(strangers))

    async def _facts(self, name: str) -> ClusterFacts:
        facts, teller, problem = await cluster_facts(self._admin, self._bookies)
        if facts is None or teller is None:
            raise Fault(f"no bookie of {name} tells about its root: {problem}; try again")
        self._teller = teller  # who answered is asked for the rest
        return facts

    async def outlooks(self, view: View, chosen: Sequence[Stranger]) -> Outlooks:
        """Lists every ledger once for each of these."""
        by_bookie = {each.bookie_id: await self._admin.outlook(self._teller, each.bookie_id) for each in chosen}
        told = await bookie_facts(self._admin, {each.pod: each for each in self._bookies})
        spec, _ = parse_spec(known_spec(self._cluster.get("spec") or {})[0])
        if spec is None:
            raise RefusedFault(f"the spec of {view.cluster} cannot be read: is this kubectl-bookie older than it?")
        free = sum(each.free_bytes for each in told.values() if each is not None and not each.read_only)
        free = free * (100 - spec.decommission.headroom_percent) // 100
        refusals, notes = _judged(view, chosen, by_bookie, free)
        refusals += _too_few(view, [each for each in by_bookie.values() if each], spec.durability.ensemble_size)
        notes += [f"{pod} does not tell its space: is it up?" for pod, each in told.items() if each is None]
        theirs = await settings_of(self._api, chosen)
        ours: Mapping[str, str] = next((each.config for each in told.values() if each and each.config), {})
        for whose, config in theirs.items():
            against, besides = differences(whose, config, ours)
            refusals += against
            notes += besides
        if silent := [each.bookie_id for each in chosen if each.bookie_id not in theirs and each.mode != "down"]:
            notes.append(
                f"{', '.join(silent[:5])} did not tell their configuration (does their pod serve HTTP on port 8000, and"
                " may you forward to it?): compare nettyMaxFrameSizeBytes, TLS and authentication with yours by hand"
            )
        return Outlooks(by_bookie, free, tuple(refusals), tuple(notes))

    async def is_taken_out(self, bookie_id: str) -> bool:
        drain = await self._admin.drain(self._teller, bookie_id)
        return drain is not None and drain.phase is DrainPhase.DRAINED

    async def begin(self, bookie_id: str) -> None:
        """Begin the drain, by the first bookie of the cluster that accepts. Raises `RefusedFault` with its words,
        `Fault`: none answers."""
        refused: AdminRefused | None = None
        problem = ""
        for at in self._bookies:
            try:
                await self._admin.begin_drain(at, bookie_id, delete_cookie=True)
                return
            except AdminRefused as error:
                refused = error  # perhaps it has enough to do
            except AdminError as error:
                problem = str(error)
        if refused is not None:
            raise RefusedFault(f"{bookie_id}: {refused}")
        raise Fault(f"{bookie_id}: no bookie of the cluster could be asked: {problem}; repeat the command")

    async def undo(self, bookie_id: str) -> None:
        """Raises `RefusedFault`, `Fault`."""
        try:
            await self._admin.undo_drain(self._teller, bookie_id)
        except AdminRefused as error:
            raise RefusedFault(f"{bookie_id}: {error}") from error
        except AdminError as error:
            raise Fault(f"{bookie_id}: {error}; repeat the command") from error


@asynccontextmanager
async def migration(api: Api, name: str) -> AsyncIterator[Migration]:
    """Open the migration of the cluster as it is now; a pod that comes later is not asked."""
    cluster = await find_cluster(api, name)
    pods = await pods_of(api, name)
    async with session_to(pods, opener(api)) as session:
        admin = Admin(session, await read_token(api, name), trust=trust_of(api, name), timeout_s=_ASK_S)
        yield Migration(api, cluster, admin, pods)


def _too_few(view: View, outlooks: list[Outlook], declared: int) -> list[str]:
    largest = max((each.largest_ensemble for each in outlooks), default=0)
    refusals = []
    if len(view.ready) < largest:
        refusals.append(
            f"there are ledgers on {largest} bookies, and {len(view.ready)} of yours are writable: raise spec.replicas"
            f" to {largest + 1}, which leaves one to spare"
        )
    if declared < largest:
        refusals.append(
            f"there are ledgers on {largest} bookies, and spec.durability.ensembleSize is {declared}: raise it, since"
            " what the operator may stop follows from it"
        )
    return refusals


def _judged(
    view: View, chosen: Sequence[Stranger], by_bookie: Mapping[str, Outlook | None], free: int
) -> tuple[list[str], list[str]]:
    """Refusals and notes, as far as the metadata and the bookies of the cluster tell."""
    refusals = [
        f"{each.bookie_id} is a bookie of BookieCluster {each.owner}: lower the spec.replicas of that one instead"
        for each in chosen
        if each.owner
    ]
    refusals += [f"{each} cannot be looked at now: try again" for each, found in by_bookie.items() if found is None]
    outlooks = [each for each in by_bookie.values() if each is not None]
    nbytes = sum(each.nbytes for each in outlooks)
    if nbytes * SPACE_MARGIN > free:
        refusals.append(
            f"{readable(nbytes)} are to be copied, and your bookies have room for {readable(free)}: grow"
            " spec.storage.ledger.size, or raise spec.replicas"
        )
    notes = []
    if view.facts.last_audit is None:
        notes.append(
            "the auditor tells of no audit, as one of Java's: scale the auto-recovery of the chart to 0, so that one of"
            f" {view.cluster} is elected"
        )
    if not view.facts.autorecovery_enabled:
        notes.append("auto-recovery is disabled: what fails meanwhile is not restored")
    if view.facts.under_replicated:
        notes.append(f"{view.facts.under_replicated} ledgers are under-replicated")
    if down := [each.bookie_id for each in chosen if each.mode == "down"]:
        notes.append(f"{', '.join(down[:5])} are down: what they hold is copied from the others")
    if opened := sum(each.open_ledgers for each in outlooks):
        notes.append(
            f"{opened} ledgers are open: a writer that appends moves by itself, one that is idle for longer is fenced,"
            " and a broker goes on with a new ledger"
        )
    return refusals, notes
