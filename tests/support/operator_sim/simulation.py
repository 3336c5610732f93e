"""The whole: time, the operator's passes, its death between any two effects, and what may never happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bookie_operator.builders import commands
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec, DecommissionMode, WhenDeleted
from bookie_operator.crds.cluster_status import BookieClusterStatus, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import holding, invariants, operations, view
from bookie_operator.planner.actions import UpdateTask
from bookie_operator.planner.decision import Act, Decision, Needs, Plan, Rest, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows.decommission_steps import MODE
from bookie_operator.planner.flows.repair import loss_hash
from bookie_operator.planner.plan import needs, plan
from bookie_operator.status import reporting
from bookie_operator.world.model import ClusterView, PodFault, TaskView, World
from tests.support.operator_sim.bookkeeper import Refused, SimBookKeeper
from tests.support.operator_sim.effects import carry_out
from tests.support.operator_sim.kubernetes import Conflict, SimDeployment, SimKubernetes, SimPod, fault_of_template
from tests.support.operator_sim.snapshot import answered, world_of
from tests.support.operator_sim.specs import NAME, NAMESPACE, desired_of, merged

EPOCH: Final = 1_700_000_000.0


class NeverAtRest(AssertionError):
    """The passes did not end in the state that was asked for."""


@dataclass(frozen=True)
class Pass:
    """What one pass was about."""

    world: World
    plan: Plan
    error: str = ""


@dataclass
class Simulation:
    spec: BookieClusterSpec
    uid: str = "instance-1"
    """Of the resource: the next one of its name has another."""
    status: BookieClusterStatus = field(default_factory=BookieClusterStatus)
    kubernetes: SimKubernetes = field(default_factory=SimKubernetes)
    bookkeeper: SimBookKeeper = field(default_factory=SimBookKeeper)
    now: float = EPOCH
    annotations: dict[str, str] = field(default_factory=dict)
    generation: int = 1
    release: str = ""
    """Of the operator."""
    rivals: tuple[str, ...] = ()
    """Releases of operators that take turns; empty: there is one."""
    deleting: bool = False
    finalizer: bool = True
    spec_errors: tuple[str, ...] = ()
    tasks: list[TaskView] = field(default_factory=list)
    task_messages: dict[str, str] = field(default_factory=dict)
    job_ends_at: float | None = None
    cleanup_ends_at: float | None = None
    cleanup: str = ""
    """How the Job that removes the metadata ended."""
    autorecovery: SimDeployment = field(default_factory=SimDeployment)
    gateway: SimDeployment = field(default_factory=SimDeployment)
    kept_instance_id: str = ""
    kept_replicas: int = 0
    accidents: list[str] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    forgiven: bool = False
    """Disks were destroyed from outside: ledgers without a copy are nobody's fault."""
    _desired: tuple[BookieClusterSpec, tuple[str, ...], Desired] | None = None
    """What was wanted last, with all that it follows from."""

    def __post_init__(self) -> None:
        self._share_time()

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """In steps of a second, so that everything happens in order."""
        for _ in range(max(1, round(seconds))):
            self.now += 1.0
            self._share_time()
            if self.job_ends_at is not None and self.now >= self.job_ends_at and self.bookkeeper.up:
                self.bookkeeper.instance_id = self.bookkeeper.instance_id or self.uid
            self._clean_up()
            self.kubernetes.tick()
            self._run_bookies()
            self.bookkeeper.tick()
            if not self.forgiven and (not self.deleting or self.bookkeeper.joined) and (lost := self.bookkeeper.lost):
                self.accidents.append(f"no copy is left of ledgers {sorted(lost)}")
                self.forgiven = True

    def _clean_up(self) -> None:
        """The Job that removes the metadata: like `cluster nuke` it refuses while other bookies use them."""
        keeper, ends = self.bookkeeper, self.cleanup_ends_at
        if ends is None or self.now < ends or self.cleanup or not keeper.up:
            return
        others = [one for one in keeper.cookies if not one.endswith(self.desired().bookie_id_suffix)]
        accepted = {self.status.instance_id, *([""] if "--if-exists" in commands.destroy(self.view()) else [])}
        another = keeper.instance_id not in accepted
        self.cleanup = "Failed" if others or keeper.running or another else "Complete"
        if self.cleanup == "Complete":
            keeper.cookies.clear()

    def _share_time(self) -> None:
        self.kubernetes.now = self.bookkeeper.now = self.now
        self.kubernetes.instance_id = self.status.instance_id
        auditor = self.autorecovery.up(self.now) or self.bookkeeper.other_auditor
        self.bookkeeper.auditor_up = auditor and self.bookkeeper.up

    def _run_bookies(self) -> None:
        keeper, desired = self.bookkeeper, self.desired()
        for pod in self.kubernetes.pods.values():
            up = pod.gone_at is None and pod.fault is PodFault.NONE and self.now >= pod.starts_at
            bookie_id = desired.bookie_id(pod.name)
            if up and not pod.running and keeper.up:
                self._start(pod.name, bookie_id, desired)
            elif not up:
                pod.running, pod.ready_since = False, None
                keeper.stop(bookie_id)
        for bookie_id in list(keeper.running):
            pod, _, host = bookie_id.partition(".")
            if f".{host}" == desired.bookie_id_suffix and pod not in self.kubernetes.pods:
                keeper.stop(bookie_id)
        keeper.disks = {
            one.data_id for one in self.kubernetes.claims.values() if one.data_id and one.volume == "ledger"
        } | set(keeper.joined.values())

    def _start(self, name: str, bookie_id: str, desired: Desired) -> None:
        pod, claims = self.kubernetes.pods[name], self.kubernetes.claims_of(name)
        held = {one.data_id for one in claims}
        data_id = held.pop() if len(held) == 1 else "mixed"
        served = self.bookkeeper.start(bookie_id, data_id, self.kubernetes.uid())
        if served is None:
            pod.fault = PodFault.COOKIE
            return
        for one in claims:
            one.data_id = served
        pod.running, pod.ready_since, pod.config = (
            True,
            self.now,
            {key: desired.dynamic_config[key] for key in desired.given_config},
        )

    # --- what is seen -------------------------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        return ClusterView(
            NAME,
            NAMESPACE,
            self.uid,
            self.generation,
            self.spec,
            self.status,
            dict(self.annotations),
            self.deleting,
            self.finalizer,
        )

    def desired(self) -> Desired:
        of = (self.status.instance_id, self.annotations.get(names.RESTART, ""), self.release)
        if self._desired is None or self._desired[0] is not self.spec or self._desired[1] != of:
            self._desired = (self.spec, of, desired_of(self.view(), self.release))
        return self._desired[2]

    def world(self, wanted: Needs | None = None) -> World:
        world = world_of(self, self.desired())
        return answered(self, world, wanted) if wanted is not None else world

    def zone_of(self, stateful_set: str) -> str:
        found = self.kubernetes.sets.get(stateful_set)
        return found.zone if found is not None else ""

    def evictable(self, pod: SimPod) -> bool:
        """By the budget's hash, which tells what it allows: `budget-ZONE-COUNT`."""
        budget = self.kubernetes.objects.get(f"PodDisruptionBudget/{NAME}-bookie")
        if pod.ready_since is None or budget is None:
            return True
        zone, _, count = budget[0].removeprefix("budget-").rpartition("-")
        if zone and self.zone_of(pod.stateful_set) == zone:
            return True
        return sum(one.ready_since is None for one in self.kubernetes.pods.values()) < int(count)

    def judge(self, bookie: str, what: str) -> None:
        """Nothing may be taken from a bookie that ledgers name, unless their loss was accepted."""
        accepted = {ledger for task in self.tasks if task.type is TaskType.ACCEPT_LOSS for ledger in task.ledgers}
        named = set(self.bookkeeper.naming(self.desired().bookie_id(bookie))) - accepted
        if named and self.annotations.get(names.ACCEPT_LEDGER_LOSS) == loss_hash(named):
            return
        operation = self.status.operation
        mode = operation.saved.get(MODE) if operation is not None else ""
        stops_first = mode == DecommissionMode.STOP_FIRST and "scaled" in what
        if named and not stops_first:
            self.accidents.append(f"{bookie} {what} while ledgers {sorted(named)} name it")

    def judge_deletion(self, what: str) -> None:
        """While another cluster uses the metadata, nothing of what it may need is taken away with the data."""
        retained = self.spec.storage.retention.when_deleted is WhenDeleted.RETAIN
        if self.bookkeeper.joined and not (retained and "claim" not in what):
            self.accidents.append(f"{what} although {sorted(self.bookkeeper.joined)} use the same metadata")

    def judge_replacement(self, bookie: str) -> None:
        """Nobody replaces a bookie by himself that a template breaks, and every other one with it."""
        operation, pod = self.status.operation, self.kubernetes.pods.get(bookie)
        if (
            operation is None
            or operation.type is not OperationType.REPLACE
            or operation.saved.get(operations.TASK)
            or pod is None
        ):
            return
        held = [one for one in self.kubernetes.claims_of(bookie) if one.data_id and not one.lost and not one.deleting]
        if len(held) == 2 and "@" not in pod.image and fault_of_template(pod) is not PodFault.NONE:
            self.accidents.append(f"{bookie} is replaced, which a template breaks")

    # --- passes -------------------------------------------------------------------------------------------------------

    def run_pass(self, *, crash: str = "") -> Pass:
        """One pass. `crash`: `before` (nothing is done), `between` (the effect, not the status), `after`."""
        if self.rivals:
            self.release = self.rivals[len(self.passes) % len(self.rivals)]
        desired = self.desired()
        world = self.world()
        world = answered(self, world, needs(world, desired))
        held = holding.hold(world, desired)
        planned = plan(world, held)
        broken = invariants.check(world, held, planned)
        if broken:
            raise AssertionError(f"{broken} by {planned.decision}")
        going = {one.bookie for one in world.claims if one.deleting} & set(view.expected_pods(world))
        if isinstance(planned.decision, Rest) and going and not self.deleting:
            raise AssertionError(f"a claim of {going} is being deleted, and the plan says that all is well")
        error = ""
        if crash != "before":
            error = self._carry_out(held, planned, lost_status=crash == "between")
        done = Pass(world, planned, error)
        self.passes.append(done)
        return done

    def _carry_out(self, desired: Desired, planned: Plan, *, lost_status: bool) -> str:
        decision = planned.decision
        if isinstance(decision, Act):
            try:
                carry_out(self, desired, planned, decision.action)
            except (Conflict, Refused) as error:
                return f"{type(error).__name__}: {error}"
        if not lost_status:
            self.status = self._after(decision)
        return ""

    def _after(self, decision: Decision) -> BookieClusterStatus:
        status = operations.after(self.status, decision, self.now)
        if status.instance_id and self.finalizer:
            self.kept_instance_id = status.instance_id
            self.kept_replicas = self.spec.replicas
        told = reporting.ledgers(self.bookkeeper.facts(), status.ledgers)
        return status.model_copy(update={"ledgers": told})

    def run(
        self,
        until: Callable[[Simulation, Decision], bool],
        *,
        most: int = 600,
        crash_at: int = -1,
        crash: str = "between",
        each: Callable[[Simulation], None] | None = None,
    ) -> int:
        """Passes until `until` answers yes, and how many; `each` is called before each of them."""
        for number in range(most):
            if each is not None:
                each(self)
            done = self.run_pass(crash=crash if number == crash_at else "")
            if until(self, done.plan.decision) and number > crash_at:
                return number + 1
            decision = done.plan.decision
            self.advance(min(decision.seconds, 10.0) if isinstance(decision, Wait) else 1.0)
        recent = [one.plan.decision for one in self.passes[-3:]]
        raise NeverAtRest(f"after {most} passes: {recent}, {self.status.operation}")

    def run_until_rest(self, *, most: int = 600, crash_at: int = -1, crash: str = "between") -> int:
        return self.run(lambda _, decision: isinstance(decision, Rest), most=most, crash_at=crash_at, crash=crash)

    def run_until_stalled(self, reason: str, *, most: int = 600) -> int:
        def stalled(sim: Simulation, decision: Decision) -> bool:
            told = (decision, *sim.passes[-1].plan.notes)
            return any(isinstance(one, Wait) and one.stalled and one.reason == reason for one in told)

        return self.run(stalled, most=most)

    # --- what people do -----------------------------------------------------------------------------------------------

    def change(self, **changes: Any) -> None:
        """Of `spec`, by names in the resource; nested ones are merged."""
        self.spec = BookieClusterSpec.model_validate(merged(self.spec.model_dump(by_alias=True), changes))
        self.generation += 1

    def ask(self, kind: TaskType, *bookies: str, ledgers: tuple[int, ...] = ()) -> str:
        name = f"task-{len(self.tasks) + 1}"
        self.tasks.append(TaskView(name, self.kubernetes.uid(), kind, bookies, "", self.now, ledgers))
        return name

    def update_task(self, action: UpdateTask) -> None:
        for place, one in enumerate(self.tasks):
            if one.uid == action.uid:
                self.tasks[place] = replace(one, phase=action.phase, started_at=one.started_at or self.now)
        self.task_messages[action.name] = action.message

    def phase(self, task: str) -> str:
        return next(one.phase for one in self.tasks if one.name == task)

    def delete(self) -> None:
        self.deleting = True
