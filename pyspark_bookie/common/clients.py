"""One client per process and cluster, shared by all callers.

Spark forks its Python workers and uses them again for many tasks. A client has a thread and connections, which do not
survive a fork, and costs some 100 ms to make. So tasks ask here, and never close what they get.

Invariants
- A client is used only in the process that made it; one that a fork brought along is never touched.
- A client that was not asked for in `IDLE_SECONDS` is dropped: it closes as soon as its last holder ends.
- Nothing here is ever pickled.

Any thread.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient
    from bookie_client.client import Client
    from bookie_client.options import ClientOptions
    from bookie_client.placement.options import PlacementOptions

IDLE_SECONDS: Final = 120.0
MAX_CLIENTS: Final = 8
"""Number of clusters (or sets of options) whose unused clients one process keeps."""

_Key = tuple[str, "ClientOptions", "PlacementOptions"]
_lock = threading.Lock()
_clients: dict[_Key, _Cached] = {}
_inherited: list[_Cached] = []
"""Clients of the process that this one was forked from: kept, because closing them would reach into its loops."""
_sweeper: threading.Timer | None = None


class _Cached:
    def __init__(self, client: BlockingClient) -> None:
        self.client = client
        self.asked_at = time.monotonic()


def client(metadata_uri: str, client_options: ClientOptions, placement: PlacementOptions) -> BlockingClient:
    """Return a started client. Do not close it, nor use it as a context manager.

    A client that may know its own location also locates the current bookies, so that reads can prefer near ones. Raises
    what `BlockingClient.start` does: `MetadataUnavailable`, `BadRequest` for an invalid URI or options that make no
    sense together.
    """
    key = metadata_uri, client_options, placement
    gone: list[_Cached] = []
    with _lock:
        cached = _clients.get(key)
        if cached is None:
            cached = _clients[key] = _Cached(_started(*key))
            gone = _let_go()
            _sweep_later()
        cached.asked_at = time.monotonic()
    gone.clear()  # outside of the lock: a client closes when its last owner ends
    if placement.local_location or placement.topology_file or placement.topology_script:
        cached.client.run(_locate_bookies)
    return cached.client


def close_clients() -> None:
    """Close all clients of this process now: for tests, and for programs that end."""
    global _sweeper
    with _lock:
        made = [cached.client for cached in _clients.values()]
        _clients.clear()
        if _sweeper is not None:
            _sweeper.cancel()
            _sweeper = None
    for each in made:
        each.close()


def _started(metadata_uri: str, client_options: ClientOptions, placement: PlacementOptions) -> BlockingClient:
    from bookie_client.blocking import BlockingClient

    made = BlockingClient(metadata_uri, client_options, placement=placement)
    made.start()
    return made


async def _locate_bookies(client: Client) -> None:
    """Locate the bookies: readers with given metadata (`Client.open_stored`) send no requests, also not for
    locations. Does nothing if all locations are known."""
    await client.context.placement_inputs.locate()


def _let_go(now: float | None = None) -> list[_Cached]:
    """Forget who is idle, and the longest idle ones beyond `MAX_CLIENTS`; returns them. A client that is still held
    lives on: its thread ends with its last owner."""
    now = time.monotonic() if now is None else now
    by_age = sorted(_clients, key=lambda key: _clients[key].asked_at)
    return [
        _clients.pop(key)
        for place, key in enumerate(by_age)
        if len(by_age) - place > MAX_CLIENTS or now - _clients[key].asked_at >= IDLE_SECONDS
    ]


def _sweep_later() -> None:
    global _sweeper
    if _sweeper is None and _clients:
        _sweeper = threading.Timer(IDLE_SECONDS / 2, _sweep)
        _sweeper.daemon = True
        _sweeper.start()


def _sweep() -> None:
    global _sweeper
    with _lock:
        _sweeper = None
        gone = _let_go()
        _sweep_later()
    gone.clear()


def _after_fork_in_child() -> None:
    """Neither threads nor who held the lock are here."""
    global _lock, _sweeper
    _lock, _sweeper = threading.Lock(), None
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
