"""What goes wrong, and how it is mended.

A fault strikes at its time, or at its moment: at the n-th event of a kind anywhere in the cluster. An event names the
host at which it happened; faults that hit a bookie or a link then hit that one more often than not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.scenario import FaultPlan
from tests.support.simulation.session import HOST
from tests.support.simulation.transport import VirtualConnection

if TYPE_CHECKING:
    from tests.support.simulation.actors import Actor
    from tests.support.simulation.bookie import VirtualBookie
    from tests.support.simulation.world import World


class Faults:
    """Carries out the plan of a scenario until `mend`."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._seen: dict[str, int] = {}
        self._planned: dict[tuple[str, int], list[FaultPlan]] = {}
        self._started = self._mended = False
        self._replaced = 0
        self._strikes: dict[str, Callable[[str], None]] = {
            "kill": self._kill,
            "power": self._power,
            "partition": self._partition,
            "one-way": self._one_way,
            "reset": self._reset,
            "slow link": self._slow_link,
            "repeated answers": self._repeated_answers,
            "slow disk": self._slow_disk,
            "read-only": self._read_only,
            "metadata answer": self._metadata_answer,
            "metadata connection": self._metadata_connection,
            "metadata session": self._metadata_session,
            "metadata down": self._metadata_down,
            "kill writer": lambda host: self._kill_client("writer"),
            "kill recoverer": lambda host: self._kill_client("recoverer"),
            "recover": self._recover,
            "sleep": self._sleep,
            "lost disk": self._lost_disk,
            "replaced disk": self._replaced_disk,
            "new under its id": self._new_under_its_id,
            "bad reads": self._bad_reads,
            "flush": self._flush,
        }

    def start(self) -> None:
        """Times and events count from now on."""
        self._started = True
        for plan in self._world.scenario.faults:
            if plan.at is None:
                self._planned.setdefault((plan.moment, plan.number), []).append(plan)
            else:
                self._world.loop.call_later(plan.at + plan.delay, self._strike, plan, "")

    def event(self, kind: str, host: str = "") -> None:
        """Something happened."""
        if not self._started:
            return
        number = self._seen[kind] = self._seen.get(kind, 0) + 1
        for plan in self._planned.pop((kind, number), ()):
            self._world.loop.call_later(plan.delay, self._strike, plan, host)

    def mend(self) -> None:
        """Everything works again, and no fault strikes any more."""
        self._mended = True
        world = self._world
        world.trace("FAULTS", "everything is mended")
        world.network.heal()
        world.metadata.options.lost_answer_chance = world.metadata.options.lag = 0.0
        world.metadata.lose_answers = 0
        world.metadata.set_up(True)
        world.scenario.disk.stall_chance = 0.0
        for bookie in world.bookies:
            bookie.slowness, bookie.bad_reads_until = 1.0, 0.0
            if bookie.is_running:
                bookie.process.journal.slowness = 1.0
            bookie.start()
            bookie.set_read_only(False)

    def _strike(self, plan: FaultPlan, host: str) -> None:
        if self._mended:
            return
        self._world.history.count(f"fault: {plan.kind}")
        self._strikes[plan.kind](host)

    def _later(self, mean_seconds: float, action: Callable[[], None]) -> None:
        """Undo a fault after a while, unless everything was mended before."""
        self._world.loop.call_later(self._random.expovariate(1 / mean_seconds), self._unless_mended, action)

    def _unless_mended(self, action: Callable[[], None]) -> None:
        if not self._mended:
            action()

    # --- who is hit -----------------------------------------------------------------------------------------

    def _bookie(self, host: str, among: Callable[[VirtualBookie], bool]) -> VirtualBookie | None:
        bookies = [bookie for bookie in self._world.bookies if among(bookie)]
        if not bookies:
            return None
        if self._random.random() < 0.6:
            for bookie in bookies:
                if bookie.host == host:
                    return bookie
        return self._random.choice(bookies)

    def _running(self, host: str) -> VirtualBookie | None:
        return self._bookie(host, lambda bookie: bookie.is_running)

    def _clients(self, role: str = "") -> list[Actor]:
        return [
            actor
            for actor in self._world.actors
            if actor.name.startswith(role) and not actor.host.is_dead and not actor.finished
        ]

    def _client_host(self) -> str | None:
        """A client's host, a writer's or a recoverer's more often."""
        actors = self._clients() + self._clients("writer") + self._clients("recoverer")
        return self._random.choice(actors).host.host if actors else None

    def _two_hosts(self, host: str) -> tuple[str, str] | None:
        bookie = self._running(host)
        client = self._client_host()
        return None if bookie is None or client is None else (client, bookie.host)

    # --- bookies --------------------------------------------------------------------------------------------

    def _kill(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            bookie.kill()
            self._later(0.5, bookie.start)

    def _power(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            bookie.power_off()
            self._later(1.0, bookie.start)

    def _slow_disk(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            seconds = self._random.expovariate(1.0)
            self._world.trace(bookie.host, f"its disk stalls for {seconds:.3f} s")
            bookie.process.journal.stalled_until = self._world.loop.time() + seconds

    def _read_only(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            bookie.set_read_only(True)
            self._later(1.0, lambda: bookie.set_read_only(False))

    def _may_lose_data(self, host: str) -> VirtualBookie | None:
        """A bookie that is running, while one of every ack quorum survives."""
        lost = sum(bookie.has_lost_data for bookie in self._world.bookies)
        return self._running(host) if lost < self._world.scenario.quorums[2] - 1 else None

    def _replaced_disk(self, host: str) -> None:
        bookie = self._may_lose_data(host)
        if bookie is not None:
            self._world.trace(bookie.host, "gets an empty disk")
            bookie.replace_disk()
            self._later(0.5, bookie.start)

    def _new_under_its_id(self, host: str) -> None:
        """The bookies of the cluster, each in its turn."""
        self._replaced = (self._replaced + 1) % len(self._world.bookies)
        bookie = self._world.bookies[self._replaced]
        if bookie.is_running:
            self._world.trace(bookie.host, "is replaced under its id")
            bookie.be_another()
            bookie.start()

    def _bad_reads(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            bookie.bad_reads = "error" if self._random.random() < 0.5 else "damage"
            bookie.bad_reads_until = self._world.loop.time() + self._random.expovariate(1.0)
            self._world.trace(bookie.host, f"bad reads ({bookie.bad_reads}) for a while")
            bookie.forget_memory()

    def _lost_disk(self, host: str) -> None:
        world = self._world
        bookie = self._may_lose_data(host)
        if bookie is not None:
            world.trace(bookie.host, "loses its disk")
            bookie.lose_disk()
            world.add_bookie().start()

    def _flush(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            bookie.forget_memory()

    # --- the network ----------------------------------------------------------------------------------------

    def _partition(self, host: str) -> None:
        """One host, or one pair, is cut off."""
        world = self._world
        hosts = self._two_hosts(host)
        if hosts is None:
            return
        client, bookie = hosts
        shape = self._random.random()
        if shape < 0.4:
            pairs = [(client, bookie), (bookie, client)]
        else:
            alone = client if shape < 0.7 else bookie
            others = [one.host for one in world.bookies] + [one.host.host for one in world.actors] + [HOST]
            pairs = [pair for other in others if other != alone for pair in ((alone, other), (other, alone))]
        self._block(pairs)

    def _one_way(self, host: str) -> None:
        hosts = self._two_hosts(host)
        if hosts is not None:
            self._block([hosts if self._random.random() < 0.5 else hosts[::-1]])

    def _block(self, pairs: list[tuple[str, str]], mean_seconds: float = 0.7) -> None:
        world = self._world
        world.trace("FAULTS", f"blocked: {', '.join(f'{a} > {b}' for a, b in pairs)}")
        for pair in pairs:
            world.network.block(*pair)

        def unblock() -> None:
            world.trace("FAULTS", f"open again: {', '.join(f'{a} > {b}' for a, b in pairs)}")
            for pair in pairs:
                world.network.unblock(*pair)

        self._later(mean_seconds, unblock)

    def _slow_link(self, host: str) -> None:
        hosts = self._two_hosts(host)
        if hosts is not None:
            source, target = hosts if self._random.random() < 0.5 else hosts[::-1]
            seconds, factor = self._random.expovariate(1.0), 10.0 ** (1 + 2 * self._random.random())
            self._world.trace("FAULTS", f"slow: {source} > {target}, {factor:.0f} times for {seconds:.3f} s")
            self._world.network.slow_down(source, target, seconds, factor)

    def _repeated_answers(self, host: str) -> None:
        bookie = self._running(host)
        if bookie is not None:
            seconds = self._random.expovariate(1.0) * 3.0
            self._world.trace(bookie.host, f"its answers come again for {seconds:.3f} s")
            self._world.network.repeat_answers(bookie.host, seconds)

    def _reset(self, host: str) -> None:
        """Connections break. What was on its way may arrive all the same, or only one end may notice."""
        network = self._world.network
        hosts = self._two_hosts(host)
        if hosts is None:
            return
        whole_host = self._random.random() < 0.3
        broken = network.of(hosts[1]) if whole_host else network.between(*hosts)
        for connection in broken or network.of(hosts[1]):
            self._break(connection)

    def _break(self, connection: VirtualConnection) -> None:
        client, server = connection.hosts
        lost = [side for side in (client, server) if self._random.random() < 0.5]
        self._world.trace(
            "FAULTS", f"connection {connection} breaks, in flight lost from: {', '.join(lost) or 'nobody'}"
        )
        for side in lost:
            connection.lose_in_flight(side)
        if server in lost or self._random.random() < 0.5:
            connection.reset_at(client)
        elif client not in lost:
            connection.reset_at(server)
            return
        # The bookie learns of it later, if at all: until then it serves what still arrives.
        self._world.loop.call_later(self._random.expovariate(1.0) * 0.2, connection.reset_at, server)
        if client in lost:
            connection.reset_at(client)

    # --- the metadata service -------------------------------------------------------------------------------

    def _metadata_answer(self, host: str) -> None:
        self._world.metadata.lose_answers += 1 + int(self._random.random() * 3)

    def _metadata_connection(self, host: str) -> None:
        client = self._client_host()
        if client is not None:
            self._world.metadata.drop(client)

    def _metadata_session(self, host: str) -> None:
        bookie = self._running(host)
        client = self._client_host()
        if client is not None and (bookie is None or self._random.random() < 0.5):
            self._world.metadata.expire(client)
        elif bookie is not None:
            self._world.metadata.expire(bookie.host)

    def _metadata_down(self, host: str) -> None:
        metadata = self._world.metadata
        self._world.trace("FAULTS", "the metadata service is down")
        metadata.set_up(False)
        self._later(0.5, lambda: metadata.set_up(True))

    # --- clients --------------------------------------------------------------------------------------------

    def _kill_client(self, role: str) -> None:
        actors = self._clients(role)
        if actors:
            self._random.choice(actors).host.kill()

    def _recover(self, host: str) -> None:
        self._world.add_recoverer()

    # --- steps that take long -------------------------------------------------------------------------------

    def _anybody(self, host: str) -> Actor | None:
        """Whoever caused the event; if it was a bookie, somebody who may be about to change metadata."""
        actors = self._clients()
        here = [actor for actor in actors if actor.host.host == host]
        return self._random.choice(here or actors) if actors else None

    def _sleep(self, host: str) -> None:
        """A process hears and says nothing for longer than its session, as a rule."""
        actor = self._anybody(host)
        if actor is not None:
            self._cut_off(actor.host.host, 1.5 * self._world.metadata.options.session_timeout)

    def _cut_off(self, alone: str, mean_seconds: float) -> None:
        others = [bookie.host for bookie in self._world.bookies] + [HOST]
        self._block([pair for other in others for pair in ((alone, other), (other, alone))], mean_seconds)
