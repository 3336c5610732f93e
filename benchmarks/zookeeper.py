"""A ZooKeeper server for benchmarks, from the driver's class path. One thread uses a `ZooKeeper`."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from tests.support.bookie_process import free_port
from tests.support.java import find_java


class ZooKeeper:
    """A stand-alone server on a free port of the loopback interface."""

    def __init__(self, class_path: str, directory: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._class_path = class_path
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        self._directory.mkdir(parents=True)
        host, port = self.address.split(":")
        file = self._directory / "zoo.cfg"
        file.write_text(
            f"dataDir={self._directory}\nclientPort={port}\nclientPortAddress={host}\n"
            "tickTime=1000\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        with (self._directory / "zookeeper.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    find_java(),
                    "-Xmx256m",
                    "-cp",
                    self._class_path,
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    str(file),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while True:
            client = KazooClient(self.address)
            try:
                client.start(timeout=2)
                return
            except KazooTimeoutError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    log = (self._directory / "zookeeper.log").read_text()[-3000:]
                    raise RuntimeError(f"ZooKeeper did not start:\n{log}") from None
            finally:
                client.stop()
                client.close()

    def stop(self) -> None:
        """Ends the server; nothing of it is kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
