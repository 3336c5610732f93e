"""`kubectl bookie migrate ... --in-place`: a cluster takes over the bookies of an earlier StatefulSet.

They keep their volumes and their ids. `takeover` says what is done, and when.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import Any, Final

import click

from bookie_operator.api.errors import Absent, Conflict, KubernetesError, TooManyRequests, Unreachable
from bookie_operator.api.kinds import (
    CLAIM,
    CLUSTER,
    CONFIG_MAP,
    POD,
    STATEFUL_SET,
    KubernetesObject,
    Resource,
    resource_of_kind,
)
from bookie_operator.builders import config, in_place, naming
from bookie_operator.crds import names
from bookie_operator.planner.decision import Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import rollout_state
from bookie_operator.plugin.clusters import find_cluster
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.faults import ExitCode, RefusedFault, explained
from bookie_operator.plugin.forwarding import opener
from bookie_operator.plugin.planning import see
from bookie_operator.plugin.refusals import refusals
from bookie_operator.plugin.strangers import Place, Stranger, differences, settings_of
from bookie_operator.plugin.tables import plain_table, print_to_terminal
from bookie_operator.plugin.takeover import (
    Phase,
    Sight,
    Step,
    added,
    is_ready,
    kept_anew,
    may_be_handed_over,
    new_record,
    next_back,
    next_there,
    next_to_return,
    of_pod_set,
    record_name,
    runs_ours,
)
from bookie_operator.world.model import World

_EVERY_S: Final = 2.0
_HELD_S: Final = 90.0
"""A command that was killed holds others up for so long: longer than any request of it lasts."""
_FAILURES: Final = 60
_HELD_BY: Final = f"{names.GROUP}/held-by"
_HELD_UNTIL: Final = f"{names.GROUP}/held-until"
_INSTEAD: Final = "without --in-place they are moved beside: see docs/migrate.md"
_DEFAULT_STORAGE: Final = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"


# --- commands -----------------------------------------------------------------------------------------------------


async def plan(api: Api, name: str, output: str) -> int:
    sight = await _look(api, name)
    against: list[str] = []
    notes: list[str] = []
    if sight.phase in (Phase.NONE, Phase.GIVEN_BACK):
        against, notes = await _against(api, sight)
    if output == "json":
        click.echo(json.dumps({**_members(sight), "refusals": against, "notes": notes}, indent=2))
        return ExitCode.REFUSED if against else ExitCode.OK
    _print_table(sight)
    for note in notes:
        click.echo(f"note: {note}")
    for refusal in against:
        click.echo(f"refused: {refusal}")
    if not against:
        click.echo(_next_command(sight))
    return ExitCode.REFUSED if against else ExitCode.OK


async def status(api: Api, name: str, output: str) -> None:
    sight = await _look(api, name)
    if output == "json":
        click.echo(json.dumps(_members(sight), indent=2))
        return
    _print_table(sight)
    click.echo(_next_command(sight))


async def run(api: Api, name: str) -> None:
    await _Work(api, name).forth()


async def undo(api: Api, name: str) -> None:
    await _Work(api, name).back()


# --- working ------------------------------------------------------------------------------------------------------


class _Work:
    """One command. Each round looks, and does at most one thing."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._name = name
        self._holder = uuid.uuid4().hex
        self._told = ""
        self._failures = 0

    async def forth(self) -> None:
        sight = await _look(self._api, self._name)
        if sight.phase in (Phase.NONE, Phase.GIVEN_BACK):
            await self._begin(sight)
        elif sight.phase is Phase.GIVING_BACK:
            raise RefusedFault(
                f"its bookies are being given back: `kubectl bookie migrate undo {self._name} --in-place` ends that"
            )
        if sight.phase is not Phase.TAKEN_OVER:
            await self._holding(self._hand_over)
        await self._repeated(self._followed)

    async def back(self) -> None:
        sight = await _look(self._api, self._name)
        if sight.phase in (Phase.NONE, Phase.GIVEN_BACK):
            click.echo("nothing is under way")
            return
        await self._holding(self._give_back)
        operation = sight.seen.world.cluster.status.operation
        if operation is not None and (delay := operation.saved.get(rollout_state.DELAY)):
            click.echo(
                f"note: lostBookieRecoveryDelay was {delay}: `bookie cluster lost-delay set {delay}` puts it back"
            )
        click.echo(
            f"the bookies are those of StatefulSet {sight.set_name} again; {self._name} stays paused:"
            f" `kubectl bookie migrate run {self._name} --in-place` takes them over once more, or delete the"
            f" BookieCluster after `kubectl bookie resume {self._name}`"
        )

    async def _begin(self, sight: Sight) -> None:
        against, notes = await _against(self._api, sight)
        for note in notes:
            click.echo(f"note: {note}", err=True)
        if against:
            raise RefusedFault("; ".join(against))
        record = new_record(sight)
        if sight.record is None:
            await self._api.kubernetes.create(record)
        else:
            seen = {"resourceVersion": sight.record["metadata"]["resourceVersion"]}
            await self._api.kubernetes.replace({**record, "metadata": {**record["metadata"], **seen}})

    async def _hand_over(self, sight: Sight) -> bool:
        if sight.phase is Phase.GIVING_BACK:
            raise RefusedFault("another run gives them back: this run ends")
        if sight.phase is Phase.TAKEN_OVER:
            return True
        if sight.foreign is not None and "deletionTimestamp" not in sight.foreign["metadata"]:
            against, _ = await _against(self._api, sight)
            if against:
                raise RefusedFault("; ".join(against))
        if (kept := kept_anew(sight)) is not None:
            await self._change_record(sight, kept)
            return False
        step = next_there(sight)
        if step is None:
            await self._record(sight, Phase.TAKEN_OVER)
            return True
        await self._do(step)
        return False

    async def _give_back(self, sight: Sight) -> bool:
        if sight.phase is Phase.GIVEN_BACK:
            return True
        if more := added(sight):
            number = len(sight.pods.keys() | set(more)) - len(more)
            raise RefusedFault(
                f"{', '.join(more)} came later, and the old StatefulSet would stop them at once, whatever they hold:"
                f" set spec.replicas to {number}, `kubectl bookie resume {self._name}`, and repeat this when they are"
                " taken out"
            )
        if sight.phase is not Phase.GIVING_BACK:
            await self._record(sight, Phase.GIVING_BACK)
            return False
        step = next_back(sight)
        if step is None:
            await self._record(sight, Phase.GIVEN_BACK)
            return True
        await self._do(step)
        return False

    async def _followed(self, sight: Sight) -> bool:
        """Follow the work of the operator; this only looks."""
        if sight.phase is not Phase.TAKEN_OVER:
            raise RefusedFault("another run gives them back: this run ends")
        left = sorted(name for name, pod in sight.pods.items() if not runs_ours(pod))
        cluster = sight.seen.world.cluster
        operation = cluster.status.operation
        if not left and operation is None and all(map(is_ready, sight.pods.values())) and sight.stateful_set:
            self._tell(f"all bookies of {self._name} are the operator's")
            return True
        words = f"{len(left)} bookies are to be restarted"
        if operation is not None:
            words += f"; {operation.type.value}, {operation.step}: {operation.message}"
        self._tell(words)
        return False

    async def _do(self, step: Step) -> None:
        if step.act is not None:
            try:
                await step.act(self._api)
            except (Conflict, Absent):
                return  # it was changed meanwhile, or it is going: the next look shows
        self._tell(step.words)

    def _tell(self, words: str) -> None:
        if words != self._told:
            click.echo(words)
            self._told = words

    # --- rounds -------------------------------------------------------------------------------------------------------

    async def _holding(self, round_: Any) -> None:
        """Keep other runs from doing the same meanwhile, or the opposite."""

        async def held(sight: Sight) -> bool:
            await self._hold(sight)
            return bool(await round_(sight))

        try:
            await self._repeated(held)
        finally:
            with contextlib.suppress(KubernetesError):
                await self._release()

    async def _repeated(self, round_: Any) -> None:
        """Repeat a round until it says that it is done."""
        while True:
            told = self._told
            try:
                done = await round_(await _look(self._api, self._name))
                self._failures = 0
            except (TooManyRequests, Unreachable, Conflict) as error:
                self._failures += 1
                if self._failures > _FAILURES:
                    raise
                click.echo(f"kubectl-bookie: {explained(error, self._api.server)}; looks again", err=True)
                done, told = False, self._told
            if done:
                return
            if told == self._told:  # it waits
                await asyncio.sleep(_EVERY_S)

    async def _hold(self, sight: Sight) -> None:
        assert sight.record is not None
        found = sight.record["metadata"].get("annotations") or {}
        until = float(found.get(_HELD_UNTIL) or 0)
        if found.get(_HELD_BY, self._holder) != self._holder and until > time.time():
            raise RefusedFault(
                f"another command is at work on {self._name}: end it, or wait, at most {until - time.time():.0f} s"
                " after it was killed"
            )
        marks = {_HELD_BY: self._holder, _HELD_UNTIL: f"{time.time() + _HELD_S:.0f}"}
        await self._merge_record(sight.record, {"metadata": {"annotations": marks}})

    async def _release(self) -> None:
        record = await self._api.kubernetes.find(CONFIG_MAP, self._api.namespace, record_name(self._name))
        if record is not None and (record["metadata"].get("annotations") or {}).get(_HELD_BY) == self._holder:
            await self._merge_record(record, {"metadata": {"annotations": {_HELD_BY: None, _HELD_UNTIL: None}}})

    async def _merge_record(self, record: KubernetesObject, patch: KubernetesObject) -> None:
        """Merge a patch into the record. Conflict: it was changed since."""
        metadata = {**patch["metadata"], "resourceVersion": record["metadata"]["resourceVersion"]}
        name = record["metadata"]["name"]
        await self._api.kubernetes.merge(CONFIG_MAP, self._api.namespace, name, {**patch, "metadata": metadata})

    async def _record(self, sight: Sight, phase: Phase) -> None:
        await self._change_record(sight, {"phase": phase.value})

    async def _change_record(self, sight: Sight, data: dict[str, str]) -> None:
        """Change the data of the record, which this run holds."""
        assert sight.record is not None
        uid = sight.record["metadata"]["uid"]
        await self._api.kubernetes.merge_exactly(
            CONFIG_MAP, self._api.namespace, record_name(self._name), uid, {"data": data}
        )


# --- looking ------------------------------------------------------------------------------------------------------


async def _look(api: Api, name: str) -> Sight:
    """Raises `Fault`."""
    resource = await find_cluster(api, name)
    kubernetes, namespace = api.kubernetes, api.namespace
    record = await kubernetes.find(CONFIG_MAP, namespace, record_name(name))
    stateful_set = await kubernetes.find(STATEFUL_SET, namespace, naming.bookies(name))
    pods = await _listed(api, POD)
    own = {each["metadata"]["name"]: each for each in pods if of_pod_set(naming.bookies(name), each)}

    def asks(_: World, desired: Desired) -> Needs:
        """Ask what would happen to ledgers without the next pod that is given back."""
        if record is None or record["data"]["phase"] != Phase.GIVING_BACK:
            return Needs()
        found = next_to_return(own, sorted(own, key=_number))
        if found is None:
            return Needs()
        return Needs(safety=frozenset({frozenset({desired.bookie_id(found["metadata"]["name"])})}))

    seen = await see(api, resource, opener(api), asks)
    if isinstance(seen, tuple):
        raise RefusedFault(f"the spec of {name} cannot be read: {'; '.join(seen)}")
    layout = seen.cluster.spec.bootstrap.in_place
    if layout is None:
        raise RefusedFault(
            f"{name} has no spec.bootstrap.inPlace, which tells what is taken over; {_INSTEAD}",
        )
    wanted = {*seen.desired.support, *seen.desired.monitoring, seen.desired.budget}
    keys = sorted(key for key in wanted if may_be_handed_over(key) and key.partition("/")[2] == naming.bookies(name))
    named = {key: await kubernetes.find(_kind(key), namespace, key.partition("/")[2]) for key in keys}
    claims = {each["metadata"]["name"]: each for each in await _listed(api, CLAIM)}
    sight = Sight(
        seen,
        {**resource, "kind": CLUSTER.kind},
        record,
        stateful_set,
        {key: each for key, each in named.items() if each is not None},
        {each: own[each] for each in sorted(own, key=_number)},
        tuple(each for each in pods if each["metadata"]["name"] not in own),
        {},
    )
    of_them = {claim for pod in own for _, claim in sight.claims_of(pod)}
    sight.claims.update({each: claims[each] for each in sorted(of_them & claims.keys())})
    return sight


async def _listed(api: Api, resource: Resource) -> list[KubernetesObject]:
    found = await api.kubernetes.list(resource, api.namespace)
    return [{**each, "apiVersion": resource.api_version, "kind": resource.kind} for each in found]


def _kind(key: str) -> Resource:
    return resource_of_kind(key.partition("/")[0])


def _number(pod: str) -> int:
    return int(pod.rpartition("-")[2])


async def _against(api: Api, sight: Sight) -> tuple[list[str], list[str]]:
    """Refusals and notes."""
    cluster = sight.seen.cluster
    pods = [
        Stranger(name, "", True, None, Place(cluster.namespace, name, (pod.get("status") or {}).get("podIP", "")))
        for name, pod in sight.pods.items()
        if not runs_ours(pod)
    ]
    told = await settings_of(api, pods)
    ours = {**cluster.spec.config, **config.static_keys(cluster)}
    ours.setdefault("ledgerStorageClass", _DEFAULT_STORAGE)
    found, notes = refusals(sight, told, ours), []
    for pod, settings in sorted(told.items()):
        against, besides = differences(pod, settings, ours)
        found += against
        notes += besides
    if silent := [each.bookie_id for each in pods if each.bookie_id not in told]:
        notes.append(
            f"{', '.join(silent[:5])} did not tell their configuration: compare directories, ids, ledgerStorageClass,"
            " nettyMaxFrameSizeBytes, TLS and authentication with yours by hand"
        )
    return found, list(dict.fromkeys(notes))


# --- showing ------------------------------------------------------------------------------------------------------


def _members(sight: Sight) -> dict[str, Any]:
    bookies = [
        {
            "pod": name,
            "bookieId": f"{name}{in_place.id_suffix(sight.seen.cluster)}",
            "ready": is_ready(pod),
            "runs": _runs(pod),
        }
        for name, pod in sight.pods.items()
    ]
    return {"cluster": sight.seen.cluster.name, "phase": sight.phase.value, "bookies": bookies}


def _runs(pod: KubernetesObject) -> str:
    return "the operator's" if runs_ours(pod) else "as before"


def _print_table(sight: Sight) -> None:
    table = plain_table("POD", "READY", "RUNS", "BOOKIE")
    for each in _members(sight)["bookies"]:
        table.add_row(each["pod"], "yes" if each["ready"] else "no", each["runs"], each["bookieId"])
    print_to_terminal(table)


def _next_command(sight: Sight) -> str:
    name = sight.seen.cluster.name
    forth, back = (f"`kubectl bookie migrate {each} {name} --in-place`" for each in ("run", "undo"))
    match sight.phase:
        case Phase.TAKING_OVER:
            return f"it is being handed over: {forth} goes on, {back} takes it back"
        case Phase.TAKEN_OVER:
            return f"it is handed over: the operator goes on by itself, {back} takes it back"
        case Phase.GIVING_BACK:
            return f"it is being given back: {back} goes on"
    return f"{forth} begins"
