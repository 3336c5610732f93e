"""Network locations from a script: it gets hosts as arguments and prints one location for each.

Invariants
- At most `max_arguments` hosts in one run, one run at a time, each at most `SCRIPT_SECONDS` long.
- Answers are kept for `KEEP_SECONDS`; at most `MAX_KEPT` of them.

Event loop only.

Source: reference client protocol, section 16.1.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

from bookie_client.placement.sources.source import BookieInfos, names_of
from bookie_client.placement.topology import Location, parse_location
from bookie_protocol.errors import BadRequest, CouldNotTell

SCRIPT_SECONDS: Final = 10.0
KEEP_SECONDS: Final = 600.0
MAX_KEPT: Final = 10_000


class ScriptLocations:
    """`path`: `networkTopologyScriptFileName`; `max_arguments`: `networkTopologyScriptNumberArgs`."""

    def __init__(self, path: str, *, max_arguments: int = 100) -> None:
        if max_arguments < 1:
            raise BadRequest(f"networkTopologyScriptNumberArgs must be at least 1, not {max_arguments}")
        self._path = path
        self._max_arguments = max_arguments
        self._kept: dict[str, tuple[float, Location | None]] = {}
        self._one_run = asyncio.Lock()

    async def open(self) -> None:
        """Raises `BadRequest` when the script is missing or may not be executed."""
        if not await asyncio.to_thread(_is_executable, self._path):
            raise BadRequest(f"networkTopologyScriptFileName {self._path} is not an executable file")

    async def locate(self, bookies: Collection[str], infos: BookieInfos) -> Mapping[str, Location]:
        hosts = {bookie: (await names_of(bookie, infos))[-1] for bookie in bookies}
        await self._ask(set(hosts.values()))
        return {bookie: location for bookie, host in hosts.items() if (location := self._kept[host][1]) is not None}

    async def locate_host(self, host: str) -> Location | None:
        await self._ask({host})
        return self._kept[host][1]

    async def _ask(self, hosts: set[str]) -> None:
        async with self._one_run:
            now = asyncio.get_running_loop().time()
            self._forget(now, hosts)
            unknown = iter(sorted(hosts - self._kept.keys()))
            while batch := list(islice(unknown, self._max_arguments)):
                for host, location in zip(batch, await self._run(batch), strict=True):
                    self._kept[host] = (now + KEEP_SECONDS, location)

    def _forget(self, now: float, wanted: set[str]) -> None:
        full = len(self._kept) + len(wanted) > MAX_KEPT
        for host, (until, _) in list(self._kept.items()):
            if until < now or (full and host not in wanted):
                del self._kept[host]

    async def _run(self, hosts: list[str]) -> list[Location | None]:
        try:
            process = await asyncio.create_subprocess_exec(
                self._path, *hosts, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise CouldNotTell(f"network topology script {self._path} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(SCRIPT_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            raise CouldNotTell(f"network topology script {self._path} did not end in {SCRIPT_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        locations = output.decode(errors="replace").split()
        if process.returncode or len(locations) != len(hosts):
            raise CouldNotTell(
                f"network topology script {self._path} ended with {process.returncode} and {len(locations)} locations"
                f" for {len(hosts)} hosts"
            )
        return list(map(parse_location, locations))


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
