"""Logs of pods, read through the API server: what there is, and what is being written.

Invariants
- What is kept in memory is bounded: lines of a pod by `tail`, a line by its length, lines that wait to be printed by
  the queue, behind which readers wait.
- Following goes on over restarts of containers and new pods, from the time of the last line that was seen.

Threads: one for each pod that is followed; lines are handed to the event loop. They end with the process at the latest.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import urllib3
from kubernetes import client

from bookie_operator.api.kinds import KubernetesObject
from bookie_operator.plugin.clusters import pods_of
from bookie_operator.plugin.connection import Api

MAX_LINE: Final = 64 * 1024
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one pod's log that is not followed."""
_QUEUE: Final = 1000
_LOOK_EVERY_S: Final = 3.0
_STOP_WITHIN_S: Final = 0.5
_READ_TIMEOUT: Final = (10.0, 60.0)
_CONTAINERS: Final = ("bookie", "autorecovery", "metadata")


@dataclass(frozen=True, order=True)
class Line:
    time: str
    """RFC 3339, UTC, as the kubelet writes it; lines are in its order."""
    pod: str
    text: str = field(compare=False)


@dataclass(frozen=True)
class Wanted:
    """Which lines."""

    tail: int | None = 100
    """Lines of each pod, from the end; None: all there are."""
    since_seconds: int | None = None
    previous: bool = False
    """True for the log of the container before its last restart."""


def container_of(pod: KubernetesObject) -> str:
    """The one of the cluster, not a sidecar."""
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return next((name for name in _CONTAINERS if name in names), names[0])


async def read_log(api: Api, pod: KubernetesObject, wanted: Wanted) -> list[Line]:
    """Return the lines that there are now, with a last line that says so where it was cut.

    Raises OSError when it cannot be read.
    """
    return await asyncio.to_thread(lambda: _cut(list(_lines(api, pod, wanted, None))))


def _cut(lines: list[Line]) -> list[Line]:
    if lines and sum(len(line.time) + len(line.text) + 2 for line in lines) >= _MAX_BYTES - MAX_LINE:
        last = lines[-1]
        words = f"[the log goes on, and is cut here at {_MAX_BYTES >> 20} MiB: ask for less of it by --since or --tail]"
        lines.append(Line(last.time, last.pod, words))
    return lines


class Follower:
    """Lines of the pods of a cluster as they are written."""

    def __init__(self, api: Api, cluster: str, bookies: frozenset[str], wanted: Wanted) -> None:
        """`bookies`: pods that are followed; empty: all of the cluster."""
        self._api = api
        self._cluster = cluster
        self._bookies = bookies
        self._wanted = wanted
        self._queue: asyncio.Queue[Line] = asyncio.Queue(_QUEUE)
        self._last: dict[str, str] = {}
        """Time of the last line, by pod."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._stopped = threading.Event()

    async def lines(self) -> AsyncIterator[Line]:
        """Yield lines until it is closed."""
        looking = asyncio.create_task(self._look())
        try:
            while True:
                getting = asyncio.create_task(self._queue.get())
                await asyncio.wait({getting, looking}, return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    getting.cancel()
                    looking.result()
                    return
                yield getting.result()
        finally:
            self._stopped.set()
            for task in (looking, *self._reading.values()):
                task.cancel()

    async def _look(self) -> None:
        """Pods come and go."""
        while True:
            for pod in await pods_of(self._api, self._cluster):
                name = str(pod["metadata"]["name"])
                running = self._reading.get(name)
                if (not self._bookies or name in self._bookies) and (running is None or running.done()):
                    self._reading[name] = asyncio.create_task(self._read(pod, name))
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _read(self, pod: KubernetesObject, name: str) -> None:
        """Read in a thread that is not waited for: a log in which nothing is written cannot be interrupted."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def read() -> None:
            # OSError: its container does not run at the moment; it is looked at again. RuntimeError: the loop is over.
            with contextlib.suppress(OSError, RuntimeError):
                self._hand_over(pod, name, loop)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(over.set)

        threading.Thread(target=read, name=f"log of {name}", daemon=True).start()
        await over.wait()

    def _hand_over(self, pod: KubernetesObject, name: str, loop: asyncio.AbstractEventLoop) -> None:
        after = self._last.get(name)
        for line in _lines(self._api, pod, self._wanted, after, follow=True):
            if self._stopped.is_set():
                return
            if after is None or line.time > after:
                putting = asyncio.run_coroutine_threadsafe(self._queue.put(line), loop)
                while not self._stopped.is_set():
                    with contextlib.suppress(concurrent.futures.TimeoutError):
                        putting.result(_STOP_WITHIN_S)
                        break
                self._last[name] = line.time


def _lines(
    api: Api, pod: KubernetesObject, wanted: Wanted, after: str | None, *, follow: bool = False
) -> Iterator[Line]:
    name = str(pod["metadata"]["name"])
    options: dict[str, Any] = {"container": container_of(pod), "timestamps": True, "previous": wanted.previous}
    if follow:
        options["follow"] = True
    else:
        options["limit_bytes"] = _MAX_BYTES
    if after is None and wanted.tail is not None:
        options["tail_lines"] = wanted.tail
    if after is not None:
        options["since_seconds"] = 300
    elif wanted.since_seconds is not None:
        options["since_seconds"] = wanted.since_seconds
    core: Any = client.CoreV1Api(client.ApiClient(api.configuration))
    try:
        answer = core.read_namespaced_pod_log(
            name, api.namespace, _preload_content=False, _request_timeout=_READ_TIMEOUT, **options
        )
        try:
            for text in _split(answer):
                time, _, words = text.partition(" ")
                yield Line(time, name, words)
        finally:
            answer.release_conn()
    except client.ApiException as error:
        raise OSError(None, f"the log of pod {name} cannot be read: {error.reason or error.status}") from error
    except urllib3.exceptions.HTTPError as error:
        raise OSError(None, f"the log of pod {name} broke off: {type(error).__name__}") from error
    finally:
        core.api_client.close()


def _split(answer: Any) -> Iterator[str]:
    """Lines; of one that is too long its beginning."""
    rest = b""
    for piece in answer.stream(16 * 1024, decode_content=False):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line[:MAX_LINE].decode(errors="replace")
        rest = rest[:MAX_LINE]
    if rest:
        yield rest.decode(errors="replace")
