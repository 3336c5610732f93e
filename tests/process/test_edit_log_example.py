"""`examples/edit_log` as its page shows it: the active node is killed, and one that hangs is locked out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.cluster_fixtures import bookies, cluster, metadata_service

__all__ = ["bookies", "cluster", "metadata_service"]

BOOKIES = 3
ROOT = Path(__file__).parents[2]


class Node:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def said(self, beginning: str) -> str:
        """The next line, which begins so."""
        async with asyncio.timeout(60):
            line = (await self.process.stdout.readline()).decode().rstrip()
        assert line.startswith(beginning)
        return line

    async def asked(self, command: str, beginning: str) -> str:
        self.process.stdin.write(command.encode() + b"\n")
        return await self.said(beginning)


async def test_a_dead_node_and_one_that_hangs(cluster, metadata_service, tmp_path):
    where = ["--uri", cluster.uri, "--election", metadata_service.uri("/election"), "--segment", "3"]

    async with AsyncExitStack() as stack:

        async def node(name):
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    "examples.edit_log.name_node",
                    name,
                    *where,
                    "--image",
                    tmp_path / "names.json",
                ),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
            )
            stack.push_async_callback(process.wait)
            stack.callback(lambda: process.returncode is None and process.kill())
            started = Node(process)
            await started.said("standby")
            return started

        first = await node("first")
        await first.said("active, behind transaction 0")
        for number in range(1, 6):
            await first.asked(f"create /{number}", f"done {number}")
        second = await node("second")
        await second.asked("create /6", "standby: only the active node takes that")
        first.process.kill()
        await second.said("active, behind transaction 5")
        await second.asked("delete /1", "done 6")
        await second.asked("list", "4 names at transaction 6 /2 /3 /4 /5")
        await second.asked("checkpoint", "checkpoint at transaction 6 and 2 segments purged")
        third = await node("third")
        os.kill(second.process.pid, signal.SIGSTOP)
        await third.said("active, behind transaction 6")
        await third.asked("create /7", "done 7")
        os.kill(second.process.pid, signal.SIGCONT)
        await second.asked("create /never", "another node is active now: this one ends")
        assert await second.process.wait() == 1
        await third.asked("list", "5 names at transaction 7 /2 /3 /4 /5 /7")
