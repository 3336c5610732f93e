"""`python -m tests.interop.java_classes` keeps the classes of Apache's programs for every later start of their Java.

Once for a state of the project, since it takes as long as a few starts. A bookie, a client and the shell load what
tests need. Without it they start more slowly, which is no fault: it may be ended at any moment (`.ci/ahead`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.interop.cluster import Cluster
from tests.interop.java_client import JavaClient
from tests.interop.java_programs import PROJECT
from tests.support.java import SHORT_LIVED, find_java, kept_classes
from tests.support.java_bookie import java_shell
from tests.support.zookeeper import ZooKeeperServer

_SECONDS = 300


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and what was started ends
    class_path = PROJECT.class_path()
    kept, own = kept_classes(class_path), Path(class_path.partition(os.pathsep)[0])
    if kept.exists() and kept.stat().st_mtime_ns >= own.stat().st_mtime_ns:
        return
    kept.unlink(missing_ok=True)
    new = kept.with_suffix(".new")
    with tempfile.TemporaryDirectory() as folder:
        zookeeper = ZooKeeperServer(f"{folder}/zookeeper")
        try:
            zookeeper.start()
            os.environ["JAVA_TOOL_OPTIONS"] = f"-XX:DumpLoadedClassList={folder}/%p.classes"
            _use(class_path, zookeeper.hosts, Path(folder))
        finally:
            os.environ.pop("JAVA_TOOL_OPTIONS", None)
            zookeeper.stop()
        listed = {line: None for file in sorted(Path(folder).glob("*.classes")) for line in file.open()}
        names = Path(folder) / "names"
        # The client is killed, maybe within a line.
        names.write_text("".join(line for line in listed if line.endswith("\n") and not line.startswith("#")))
        dump = ["-Xshare:dump", f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={new}", "-Xlog:cds=off"]
        subprocess.run([find_java(), *SHORT_LIVED, *dump, "-cp", class_path], check=True, timeout=_SECONDS)
    new.rename(kept)


def _use(class_path: str, zookeeper: str, folder: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(class_path, zookeeper, folder / "cluster")
        stack.callback(cluster.stop)
        bookie = cluster.bookie("java")
        bookie.start()
        client = JavaClient(class_path, cluster.metadata_uri, folder / "client.log")
        stack.callback(client.stop)
        for protocol in ("V2", "V3"):
            ledger = client.create((1, 1, 1), protocol=protocol)
            client.append(ledger, 50)
            client.open(ledger, recover=True, protocol=protocol)
            client.read(ledger, 0, 49)
        configuration = folder / "shell.conf"
        configuration.write_text(f"metadataServiceUri={cluster.metadata_uri}\n")
        java_shell(class_path, configuration, "ledgermetadata", "-ledgerid", str(ledger))
        bookie.stop()


if __name__ == "__main__":
    main()
