"""The reference bookie, Apache BookKeeper's, run from a Maven class path with the stock JVM options.

Any thread may call these; they keep no state.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.bookie_process import BookieProcess
from tests.support.java import BOOKKEEPER_OPTIONS, find_java, short_lived

# bin/common.sh of Apache BookKeeper, but for the sizes.
STOCK_OPTIONS = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-XX:+DisableExplicitGC",
)
_TOOL_SECONDS = 120


def java_bookie(
    class_path: str,
    configuration: dict[str, str],
    work: Path,
    zookeeper: str,
    *,
    heap_mb: int = 192,
    direct_mb: int = 192,
    options: Sequence[str] = STOCK_OPTIONS,
) -> BookieProcess:
    """A Java bookie, not started. The caches of its storage must fit into `direct_mb` MiB. `options`: of its compiler
    and its collector."""

    line = java_bookie_command(class_path, heap_mb=heap_mb, direct_mb=direct_mb, options=options)

    def command(file: Path, _: Mapping[str, str]) -> Sequence[str]:
        return [*line, str(file)]

    return BookieProcess("java", configuration, work, zookeeper, command)


def java_bookie_command(class_path: str, *, heap_mb: int, direct_mb: int, options: Sequence[str]) -> list[str]:
    """What runs one, in front of the path of its configuration file."""
    return [
        find_java(),
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        f"-XX:MaxDirectMemorySize={direct_mb}m",
        *options,
        *BOOKKEEPER_OPTIONS,
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-cp",
        class_path,
        "org.apache.bookkeeper.server.Main",
        "--conf",
    ]


def java_shell(class_path: str, configuration_file: Path, *arguments: str) -> str:
    """Runs a command of `bookkeeper shell`; returns its output. Raises RuntimeError with it if that failed."""
    done = subprocess.run(
        [
            find_java(),
            "-Xmx256m",
            *short_lived(class_path),
            *BOOKKEEPER_OPTIONS,
            "-cp",
            class_path,
            "org.apache.bookkeeper.bookie.BookieShell",
            "-conf",
            str(configuration_file),
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TOOL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"bookkeeper shell {' '.join(arguments)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


def initialise_cluster(class_path: str, metadata_uri: str, work: Path) -> None:
    """Creates the ledgers root with Apache's own tool (`bookkeeper shell initnewcluster`)."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "cluster.conf"
    file.write_text(f"metadataServiceUri={metadata_uri}\n")
    java_shell(class_path, file, "initnewcluster")
