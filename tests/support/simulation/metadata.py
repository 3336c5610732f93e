"""A metadata service on the virtual network: one tree of nodes, a session for each host, faults on demand.

The drivers' common layer (`bookie_protocol.metadata_service.tree`) runs on top of it unchanged: layout, retries,
recognition of own writes, watches.

What it models
- A session talks to a follower: reads may be as old as `lag`, but never older than what the session saw or wrote.
- An answer may be lost after a write was applied; then the connection breaks as well.
- A session that was away longer than its time-out is over, with everything ephemeral that it made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bookie_protocol.errors import MetadataExists
from bookie_protocol.metadata_service.tree.nodes import Created, NodeStat, Watch
from bookie_protocol.versioned import Identity
from tests.support.simulation.network import Network
from tests.support.simulation.nodes import NodeHistory, NodeRecord
from tests.support.simulation.session import HOST, VirtualTree
from tests.support.simulation.trace import Trace


@dataclass(slots=True)
class MetadataOptions:
    lag: float = 0.0
    """How far a follower may be behind, in seconds."""
    lost_answer_chance: float = 0.0
    """Of a write that was applied."""
    session_timeout: float = 4.0


NEW_NODE: Final = -2
"""Named by a request that creates a node: it replaces nothing."""
ANY_VERSION: Final = -1
"""Named by a request that replaces whatever is there."""


class MetadataServer:
    """The service itself. `on_write` hears every applied write: (host, path, data, the version that it named), before
    its answer leaves; `on_delete` of every node that went: (host, path, record), the host is empty at the end of a
    session; `on_list` of every list of children: (host, path)."""

    def __init__(self, network: Network, random: Random, trace: Trace, options: MetadataOptions) -> None:
        self.network = network
        self.random = random
        self.trace = trace
        self.options = options
        self.nodes = NodeHistory(network.loop.time)
        self.nodes.on_change = self._changed
        self.on_write: Callable[[str, str, bytes, int], None] = lambda host, path, data, version: None
        self.on_delete: Callable[[str, str, NodeRecord], None] = lambda host, path, record: None
        self.on_list: Callable[[str, str], None] = lambda host, path: None
        self.up = True
        self.lose_answers = 0
        """So many of the next writes are applied and their answers lost."""
        self._sessions: dict[int, str] = {}
        self._owned: dict[int, dict[str, None]] = {}
        self._next_session = 1
        self._watches: dict[str, list[tuple[VirtualTree, Watch]]] = {}
        self._trees: list[VirtualTree] = []
        network.on_partition.append(self._look_at_links)

    async def connect(self, host: str) -> VirtualTree:
        """A session of this host."""
        tree = VirtualTree(self, host)
        self._trees.append(tree)
        await tree.connect()
        return tree

    # --- faults ---------------------------------------------------------------------------------------------

    def set_up(self, up: bool) -> None:
        """Nobody is answered while the service is down; it has no sessions' time-outs meanwhile."""
        self.up = up
        self._look_at_links()

    def drop(self, host: str) -> None:
        """Break the connection of a host's session; it connects again."""
        for tree in self._trees:
            if tree.host == host:
                tree.lost("connection dropped")

    def hold(self, host: str, seconds: float) -> None:
        """What a host asks for arrives late; its session lives on."""
        for tree in self._trees:
            if tree.host == host:
                self.trace(HOST, f"requests of {host} are held for {seconds:.2f} s")
                tree.hold(seconds)

    def expire(self, host: str) -> None:
        """End a host's session."""
        for tree in self._trees:
            if tree.host == host:
                self.end_session(tree.session_id)
                tree.lost("session expired")

    def forget(self, host: str) -> None:
        """The host's process is gone; its sessions run out."""
        for tree in [tree for tree in self._trees if tree.host == host]:
            tree.die()
            self._trees.remove(tree)

    def reaches(self, host: str) -> bool:
        return self.up and not self.network.blocked(host, HOST) and not self.network.blocked(HOST, host)

    def _look_at_links(self) -> None:
        for tree in list(self._trees):
            tree.link_changed()

    # --- sessions -------------------------------------------------------------------------------------------

    def open_session(self, host: str) -> int:
        number = self._next_session
        self._next_session += 1
        self._sessions[number] = host
        return number

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._sessions

    def end_session(self, session_id: int) -> None:
        host = self._sessions.pop(session_id, None)
        if host is None:
            return
        self.trace(HOST, f"session {session_id} of {host} ends")
        for path in self._owned.pop(session_id, {}):
            record = self.nodes.at(path, self.nodes.now)
            if record is not None and record.owner == session_id:
                self.nodes.delete(path, None)
                self.on_delete("", path, record)

    # --- requests, as they arrive ---------------------------------------------------------------------------

    def apply_create(self, session: VirtualTree, path: str, data: bytes, ephemeral: bool, sequential: bool) -> Created:
        owner = session.session_id if ephemeral else 0
        created = self.nodes.create(path, data, owner, sequential)
        if ephemeral:
            self._owned.setdefault(owner, {})[created] = None
        self._wrote(session, created, data, NEW_NODE)
        return Created(created, self.nodes.require(created).creation)

    def apply_create_all(self, session: VirtualTree, nodes: Sequence[tuple[str, bytes]]) -> None:
        for path, _ in nodes:
            if self.nodes.at(path, self.nodes.now) is not None:
                raise MetadataExists(f"{path} exists already")
        for path, data in nodes:
            self.apply_create(session, path, data, False, False)

    def apply_set(self, session: VirtualTree, path: str, data: bytes, this: Identity | None) -> NodeStat:
        written = self.nodes.set(path, data, this)
        self._wrote(session, path, data, ANY_VERSION if this is None else this.version)
        return written

    def apply_delete(self, session: VirtualTree, path: str, this: Identity | None) -> None:
        record = self.nodes.require(path)
        self.nodes.delete(path, this)
        self.trace(HOST, f"{session.host} deletes {path}")
        self.on_delete(session.host, path, record)

    def _wrote(self, session: VirtualTree, path: str, data: bytes, version: int) -> None:
        self.trace(HOST, f"{session.host} writes {path}")
        self.on_write(session.host, path, data, version)

    def view(self, seen: int) -> int:
        """The state that a follower shows to a session that has seen `seen`."""
        lag = self.options.lag
        if not lag:
            return self.nodes.now
        return max(seen, self.nodes.change_at(self.network.loop.time() - self.random.random() * lag))

    def watch(self, tree: VirtualTree, path: str, watch: Watch, seen: int) -> None:
        """Fire once, after the next change of `path` that is newer than `seen`."""
        newer = self.nodes.changed_after(path, seen)
        if newer is None:
            self._watches.setdefault(path, []).append((tree, watch))
        else:
            tree.fire_later(watch, newer, self.options.lag)

    def _changed(self, path: str, change: int) -> None:
        for tree, watch in self._watches.pop(path, ()):
            tree.fire_later(watch, change, self.random.random() * self.options.lag)
