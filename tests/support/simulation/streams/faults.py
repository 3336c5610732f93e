"""What goes wrong beside streams, and who comes in the place of those that died."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.faults import Faults

if TYPE_CHECKING:
    from tests.support.simulation.streams.world import StreamWorld


class StreamFaults(Faults):
    """Carries out the plan of a scenario with streams."""

    def __init__(self, world: StreamWorld, random: Random) -> None:
        super().__init__(world, random)
        self._cluster = world
        self._strikes |= {"kill actor": self._kill_actor, "hold": self._hold, "sleep": self._sleep}

    def _kill_actor(self, host: str) -> None:
        actor = self._anybody(host)
        if actor is not None:
            actor.host.kill()
            again = lambda: self._cluster.follow(actor)  # noqa: E731
            self._world.loop.call_later(self._random.expovariate(2.0), self._unless_mended, again)

    def _hold(self, host: str) -> None:
        """Requests to the metadata service take their whole time-out, or longer; the session lives on."""
        actor = self._anybody(host)
        if actor is not None:
            timeout = self._world.metadata.options.session_timeout
            self._world.metadata.hold(actor.host.host, timeout * (0.2 + 1.3 * self._random.random()))
