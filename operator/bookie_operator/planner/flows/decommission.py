"""Takes bookies out, one after the other, without ever having fewer copies of an entry than before.

The next one is the highest ordinal of the most-filled zone that has too many. For each, as an operation of its own:

 1. Gates, before anything is recorded: enough bookies and zones are left, every other bookie that ever served is ready
    and writable, no ledger is under-replicated, what the bookie stores fits on the others with headroom, and each of
    its ledgers has another bookie to go to. Otherwise the reason is reported, and the rest of the pass goes on.
 2. Record: the pod, its UID and the UIDs of its claims.
 3. `Audit`: an audit is asked for and waited for; it must find nothing under-replicated.
 4. `ReadOnly`: no new data goes to it; read back, and set again whenever it is found writable.
 5. `Drain`: its copies are made elsewhere while it serves reads. No progress for `decommission.stallSeconds`: stalled,
    with the first ledgers that do not move.
 6. `Prove`, then `ProveAgain`: an uncached listing finds no ledger and no mark that names it, twice, with an audit in
    between. Otherwise back to 4.
 7. `Scale`: proven once more in the same pass, the StatefulSet gives up one replica. This is the point of no return.
 8. `Leave`: the pod is gone, and so is its registration.
 9. `ProveGone`: proven again, for a client may have opened a ledger on it meanwhile. Otherwise `Return`: one replica
    more, and back to 4.
10. `Cookie`: deleted, with a proof of the same pass.
11. `Claims`: deleted by UID, each with a proof of the same pass; with `retention.whenScaled: Retain` they are labelled
    as retired instead.

Who raises `replicas` before 7 gets the bookie back (`Undo`): the drain is taken back and it is writable again. After 7
it is finished first, and a new bookie is made.

A bookie that never served, and has no cookie, is taken away at once and without gates: `Withdraw`, then from 8 on. If
ledgers name it all the same, because its cookie was deleted, it is taken out as with `StopFirst`. A rollout that waits
gives way (`giving_way`), so that a scale-up for which there is no room can be taken back.

With `decommission.mode: StopFirst` the order is 1, 2, 3, `Stop`, 8, 5, 9, 10, 11: for a bookie that does not serve any
more, and so taken also for one that is down. It is stopped only if no ledger needs it at that moment, and comes back if
`replicas` is raised before 10.

While no node takes some other bookie, or a quota forbids it, the one that goes makes room for that: it is stopped
first, without 3, and with the gates of 1 for all others.

Threads: pure functions, any thread.

Source: docs/internals/auto-recovery.md, section 13.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import DecommissionMode
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import draining, gates, operations, view
from bookie_operator.planner.decision import Decision, Event, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import decommission_steps as steps
from bookie_operator.planner.flows import rollout_state
from bookie_operator.planner.flows.decommission_steps import (
    MAKES_ROOM,
    MODE,
    ORDINAL,
    SET,
    WAS_READ_ONLY,
    WITHDRAWN,
    stays,
    stops_first,
)
from bookie_operator.planner.proving import Claims
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.world.model import World

NOT_GIVEN_UP: Final = "NotGivenUp"
"""Reason: a task asks for a bookie that `spec` asks for too."""
_BEFORE_SCALING: Final = frozenset({"Audit", "ReadOnly", "Drain", "Prove", "ProveAgain", "Scale", "Stop"})
_PROVING: Final = frozenset({"Withdraw", "Prove", "ProveAgain", "Scale", "ProveGone", "Cookie", "Claims"})


def begin(world: World, desired: Desired) -> Decision | None:
    victim = gates.next_victim(world, desired)
    return None if victim is None else _begin(world, desired, victim, "spec asks for fewer bookies")


def awaited(desired: Desired, bookie: str) -> Wait:
    """Return what a task waits for, which begins nothing.

    A StatefulSet gives up its highest ordinal only, and `spec` says how many bookies there are.
    """
    number, wanted = view.ordinal_of(bookie), rollout_state.wanted_set(desired, view.set_of(bookie))
    if wanted is not None and number < wanted.replicas:
        of = f"replicas of zone {wanted.zone} in spec.placement" if wanted.zone else "spec.replicas"
        why = f"spec asks for {bookie}: lower {of} to {number}, for bookies leave from the highest number on"
        return Wait(NOT_GIVEN_UP, why, stalled=True)
    return Wait("DecommissionBlocked", f"waits until {bookie} is taken out, which spec asks for", seconds=10.0)


def _begin(world: World, desired: Desired, victim: gates.Victim, why: str) -> Decision:
    if (renamed := gates.renamed(world, desired, victim.name)) is not None:
        return refused(renamed)
    if gates.never_served(world, desired, victim.name):
        return _withdrawal(world, victim)
    crowded = gates.without_room(world, desired, victim.name)
    obstacle = _obstacle(world, desired, victim, crowded)
    if obstacle is None and not crowded:
        obstacle = gates.elsewhere(world, desired.bookie_id(victim.name))
    if obstacle is not None:
        return refused(obstacle)
    mode = DecommissionMode.STOP_FIRST.value if crowded else _mode(world, desired, victim)
    why = f"there is no room for {', '.join(crowded)}, and it makes some" if crowded else why
    operation = operations.new(
        world,
        OperationType.DECOMMISSION,
        "Stop" if crowded else "Audit",
        bookie=victim.name,
        saved={
            MODE: mode,
            **({MAKES_ROOM: "true"} if crowded else {}),
            SET: victim.stateful_set.name,
            ORDINAL: str(victim.ordinal),
            WAS_READ_ONLY: str(gates.is_read_only(world, desired, victim.name)).lower(),
            **Claims.of(world, victim.name).saved(),
        },
    )
    message = f"{victim.name} is taken out: {why}"
    return Record(operation, message, Event("DecommissionBegun", message))


def _mode(world: World, desired: Desired, victim: gates.Victim) -> str:
    if gates.is_down(world, desired, victim.name):
        return DecommissionMode.STOP_FIRST.value
    return world.cluster.spec.decommission.mode.value


def _obstacle(world: World, desired: Desired, victim: gates.Victim, crowded: list[str]) -> gates.Obstacle | None:
    """Return the first obstacle that needs no listing of all ledgers.

    `crowded`: bookies that wait for the room that it takes.
    """
    unknown = stops_first(_mode(world, desired, victim)) and world.bookies.get(victim.name) is None
    return gates.first(
        gates.told(world),
        gates.enough_without(world, desired, victim),
        gates.members_serve(world, desired, {victim.name, *crowded}),
        None if crowded else gates.replicated(world),
        # It is unknown what one that is down stores: the drain looks whether there is room.
        None if unknown else gates.room_for(world, victim.name),
    )


def needs_to_begin(world: World, desired: Desired) -> Needs:
    """Return the outlooks that show what a drain would refuse, once nothing else is in the way."""
    victim = gates.next_victim(world, desired)
    if victim is None or gates.never_served(world, desired, victim.name):
        return Needs()
    crowded = gates.without_room(world, desired, victim.name)
    if crowded or _obstacle(world, desired, victim, crowded) is not None:
        return Needs()
    return Needs(outlooks=frozenset({desired.bookie_id(victim.name)}))


def withdrawal(world: World, desired: Desired) -> Record | None:
    """Return the withdrawal of a bookie that is not asked for any more, and that never served."""
    victim = gates.next_victim(world, desired)
    if victim is None or not gates.never_served(world, desired, victim.name):
        return None
    return _withdrawal(world, victim) if gates.renamed(world, desired, victim.name) is None else None


def making_room(world: World, desired: Desired) -> Record | None:
    """Return the decommission of a bookie that is not asked for any more, and takes the place of another one."""
    victim = gates.next_victim(world, desired)
    if victim is None or not gates.without_room(world, desired, victim.name):
        return None
    begun = _begin(world, desired, victim, "")
    return begun if isinstance(begun, Record) else None


def making_way(world: World, desired: Desired) -> Record | None:
    """Return the decommission of a bookie that serves, and has its turn to leave before others that never did.

    Until those have gone, the disruption budget lets no bookie be restarted.
    """
    victim = gates.next_victim(world, desired)
    if victim is None or not is_in_the_way(world, desired, victim.name):
        return None
    begun = _begin(world, desired, victim, "those behind it never served")
    return begun if isinstance(begun, Record) else None


def needs_to_make_way(world: World, desired: Desired) -> Needs:
    """Return the needs of `making_way`, as `needs_to_begin` does."""
    victim = gates.next_victim(world, desired)
    if victim is None or not is_in_the_way(world, desired, victim.name):
        return Needs()
    return needs_to_begin(world, desired)


def is_in_the_way(world: World, desired: Desired, bookie: str) -> bool:
    """Return whether another one is withdrawn, in any zone: one bookie leaves after the other."""
    return any(name != bookie and gates.withdrawn(world, desired, name) for name in view.expected_pods(world))


def _withdrawal(world: World, victim: gates.Victim) -> Record:
    kept = {
        MODE: DecommissionMode.DRAIN.value,
        WITHDRAWN: "true",
        SET: victim.stateful_set.name,
        ORDINAL: str(victim.ordinal),
        **Claims.of(world, victim.name).saved(),
        **operations.planned_replicas(victim.stateful_set.name, victim.ordinal),
    }
    operation = operations.new(world, OperationType.DECOMMISSION, "Withdraw", bookie=victim.name, saved=kept)
    message = f"{victim.name} never served, and is not asked for any more: it is taken away at once"
    return Record(operation, message, Event("DecommissionBegun", message))


def given_back(world: World, desired: Desired, operation: Operation, why: str) -> Record:
    """Give back one that is still there, for other work that it is in the way of."""
    return stays(Run(world, desired, operation), why)


def needs(operation: Operation, desired: Desired) -> Needs:
    bookie = frozenset({desired.bookie_id(operation.bookie)})
    step = operation.step
    return Needs(
        proofs=bookie if step in _PROVING else frozenset(),
        drains=bookie if step in ("Drain", "Undo") else frozenset(),
        outlooks=bookie if step == "ReadOnly" or draining.asks(operation) else frozenset(),
        safety=frozenset({bookie}) if step == "Stop" else frozenset(),
        accepted_losses=draining.accepted_by(operation),
    )


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    run = Run(world, desired, operation)
    missing = gates.told(world)
    if missing is not None:
        return run.blocked(missing, run.patience)
    if _wanted_again(run):
        return stays(run, f"spec asks for {run.bookie} again")
    return take(_STEPS, run)


def _wanted_again(run: Run) -> bool:
    """Before the point of no return, which for a bookie that was stopped first is the deletion of its cookie."""
    step = run.operation.step
    returnable = _BEFORE_SCALING | ({"Leave", "ProveGone"} if stops_first(run.saved(MODE)) else set())
    return step in returnable and any(
        one.name == run.saved(SET) and one.replicas > int(run.saved(ORDINAL)) for one in run.desired.stateful_sets
    )


_STEPS: Final = {
    "Withdraw": steps.withdraw,
    "Audit": steps.audit,
    "ReadOnly": steps.read_only,
    "Drain": steps.drain,
    "Prove": steps.prove,
    "ProveAgain": steps.prove_again,
    "Scale": steps.scale,
    "Stop": steps.stop,
    "Leave": steps.leave,
    "ProveGone": steps.prove_gone,
    "Return": steps.return_,
    "Cookie": steps.cookie,
    "Claims": steps.claims,
    "Undo": steps.undo,
}
