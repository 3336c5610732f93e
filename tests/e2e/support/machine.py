"""Breaking nodes and disks of a cluster that offers the commands `node` and `disk` for it.

Threads: any; the commands take turns by themselves.
"""

from __future__ import annotations

import os
import subprocess

import pytest

_SECONDS = 300


class Machine:
    """`folder`: with the two commands."""

    def __init__(self, folder: str) -> None:
        for name in ("node", "disk"):
            if not os.access(f"{folder}/{name}", os.X_OK):
                pytest.fail(
                    "this test breaks nodes and disks: set PODKEEPER_CLUSTER to the folder with `node` and "
                    f"`disk` (no {name} in {folder or 'an unset PODKEEPER_CLUSTER'})",
                    pytrace=False,
                )
        self._folder = folder

    def kill(self, node: str) -> None:
        """A power cut."""
        self._run("node", "kill", node)

    def start(self, node: str) -> None:
        """Boot it again, with its disks."""
        self._run("node", "start", node)

    def disconnect(self, node: str) -> None:
        self._run("node", "disconnect", node)

    def connect(self, node: str) -> None:
        self._run("node", "connect", node)

    def lose_volume(self, namespace: str, claim: str) -> None:
        """The volume is gone with its data."""
        self._run("disk", "lose", namespace, claim)

    def _run(self, command: str, *arguments: str) -> None:
        with open(os.devnull, "rb") as nothing:
            done = subprocess.run(
                [f"{self._folder}/{command}", *arguments],
                stdin=nothing,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        assert done.returncode == 0, f"{command} {' '.join(arguments)}: {done.stdout[-2000:]}"
