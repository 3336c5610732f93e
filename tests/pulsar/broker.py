"""A broker of Apache Pulsar as a process, and its HTTP API. Whoever starts one ends it (`kill`)."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.bookie_process import free_port
from tests.support.java import NETTY_OPTIONS, SHORT_LIVED, MavenProject, find_java

_VERSION = os.environ.get("PULSAR_VERSION", "4.0.0")
PROJECT = MavenProject(Path(__file__).parent / "java", options=(f"-Dpulsar.version={_VERSION}",))
CLUSTER = "podkeeper"
_START_S = 600.0
_SETUP_S = 600
_END_S = 60.0
_CONFIGURATION = {
    "clusterName": CLUSTER,
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "numHttpServerThreads": "4",
    "loadBalancerEnabled": "false",
    # As brokers have it by default: two copies, both acknowledged. What is read comes from bookies, not from a cache.
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerCacheSizeMB": "0",
    # Ledgers, cursors and what has been consumed are gone over soon.
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerMaxEntriesPerLedger": "5000",
    "retentionCheckIntervalInSeconds": "2",
    "brokerDeduplicationEnabled": "true",
    "transactionCoordinatorEnabled": "true",
    # A busy machine lets the broker's own client wait for longer than it does by default.
    "brokerClient_operationTimeoutMs": "240000",
}


def java(heap_mb: int, direct_mb: int, *arguments: str) -> list[str]:
    """A command line with the class path of broker and client."""
    return [
        find_java(),
        f"-Xmx{heap_mb}m",
        f"-XX:MaxDirectMemorySize={direct_mb}m",
        *SHORT_LIVED,
        *NETTY_OPTIONS,
        "--add-opens=java.base/sun.net=ALL-UNNAMED",
        "--add-opens=java.management/sun.management=ALL-UNNAMED",
        "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        *("-cp", PROJECT.class_path()),
        *arguments,
    ]


def initialise_metadata(store: str) -> None:
    """Pulsar's own command, which makes BookKeeper's metadata too if there are none. `store`: as of a `Broker`."""
    urls = ("-uw", "http://127.0.0.1:8080", "-ub", "pulsar://127.0.0.1:6650")
    stores = ("-md", store, "-cms", store, "--initial-num-transaction-coordinators", "1")
    line = java(128, 128, "org.apache.pulsar.PulsarClusterMetadataSetup", "-c", CLUSTER, *urls, *stores)
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SETUP_S, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


class Broker:
    """On the ports that it had before. `store`: Pulsar's metadata and BookKeeper's, as in `metadataStoreUrl`."""

    def __init__(self, work: Path, store: str, settings: Mapping[str, str] | None = None) -> None:
        self.log = work / "broker.log"
        self.url = f"pulsar://127.0.0.1:{(port := free_port())}"
        self._web = free_port()
        self._file = work / "broker.conf"
        stores = {"metadataStoreUrl": store, "configurationMetadataStoreUrl": store}
        ports = {"brokerServicePort": str(port), "webServicePort": str(self._web)}
        folders = {"narExtractionDirectory": str(work)}
        keys = {**_CONFIGURATION, **stores, **ports, **folders, **(settings or {})}
        self._file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves."""
        line = java(640, 512, "org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(self._file))
        with self.log.open("ab") as log:
            self.process = process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_S
        while not self._is_ready():
            assert process.poll() is None, self.log.read_text()[-6000:]
            assert time.monotonic() < deadline, self.log.read_text()[-6000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """As a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(_END_S)
        self.process = None

    def admin(self, method: str, path: str, body: object = None, *, seconds: float = 60) -> Any:
        """What the broker answers to a request of `pulsar-admin`; None if that is nothing."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._web}/admin/v2/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[:2000]}") from None
        try:
            return json.loads(text) if text else None
        except ValueError:
            return text

    def _is_ready(self) -> bool:
        try:
            return bool(self.admin("GET", "brokers/ready", seconds=10) == "ok")
        except (OSError, AssertionError):
            return False
