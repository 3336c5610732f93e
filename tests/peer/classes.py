"""Which classes of Apache's tests there are, and running one in a JVM of its own. Any thread."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.peer.bookies import Bookies
from tests.support.java import BOOKKEEPER_OPTIONS, SHORT_LIVED, MavenProject, find_java

PROJECT = MavenProject(Path(__file__).parent / "java", tests=True)
APACHE = PROJECT.directory / "target" / "apache"
PACKAGE = "org.apache.bookkeeper."
_OPENED = ("java.lang", "java.util", "java.util.concurrent", "java.net", "java.time", "sun.nio.ch")


_SECONDS = 1200
_BASE = "org.apache.bookkeeper.test.BookKeeperClusterTestCase"


@dataclass(frozen=True)
class Listed:
    """What classes.toml says of a class."""

    seconds: float = _SECONDS
    """It may take so long."""
    inside: Mapping[str, str] = field(default_factory=dict)
    """Methods that are of the inside of a Java bookie, and what they ask for; `*` for all."""
    networked: bool = False
    """It wants a machine whose name does not stand for a loopback address."""


CLASSES = {
    name: Listed(**told) for name, told in tomllib.loads(Path(__file__).with_name("classes.toml").read_text()).items()
}
"""Below org.apache.bookkeeper."""


@dataclass(frozen=True)
class Result:
    """How a test, or a class that could not be made, ended."""

    state: str
    """passed, failed or skipped"""
    test: str
    """Its name, with its parameters."""
    why: str
    """A stack."""


class ClassRanOut(AssertionError):
    """The class took too long, or its JVM ended; `results` has what was told until then."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results


def run_class(
    name: str, folder: Path, seconds: float, *, kind: str = "ours", without: Sequence[str] = (), networked: bool = False
) -> list[Result]:
    """`name`: below org.apache.bookkeeper. `kind`: of bookies. `without`: methods that are not run. `networked`: as in
    `Listed`. The log of the JVM is `folder`/jvm.log. Raises `ClassRanOut`."""
    class_path = os.pathsep.join([str(APACHE), PROJECT.class_path()])  # the jar has no paths
    (folder / "src" / "test").mkdir(parents=True)
    (folder / "src" / "test" / "resources").symlink_to(APACHE)  # where the tests' own build has it
    bookies = Bookies(folder)
    command = [
        find_java(),
        "-Xmx768m",
        "-XX:MaxDirectMemorySize=512m",
        *SHORT_LIVED,
        *BOOKKEEPER_OPTIONS,
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "-Djdk.attach.allowAttachSelf=true",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
        "-Dzookeeper.4lw.commands.whitelist=*",
        "-Dzookeeper.admin.enableServer=false",
        *(_named(folder) if networked else ()),
        f"-Djava.io.tmpdir={folder}",
        f"-Dpeer.folder={folder}",
        f"-Dpeer.port={bookies.port}",
        "-cp",
        class_path,
        "dev.podkeeper.peer.RunClass",
        kind,
        PACKAGE + name,
        *without,
    ]
    results: list[Result] = []
    try:
        with (
            (folder / "jvm.log").open("wb") as log,
            subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            ) as jvm,
        ):
            try:
                out, _ = jvm.communicate(timeout=seconds)
                ended = "" if jvm.returncode == 0 else f"its JVM ended with {jvm.returncode}"
            except subprocess.TimeoutExpired:
                jvm.kill()
                out, _ = jvm.communicate()
                ended = f"it took more than {seconds:.0f} s"
        for line in out.split("\n"):
            if line.startswith("peer\t"):
                _, state, test, why = line.split("\t", 3)
                results.append(Result(state, test, why.replace("\u2028", "\n")))
    finally:
        bookies.close()
    if ended:
        raise ClassRanOut(f"{name}: {ended}; its log is {folder / 'jvm.log'}", results)
    return results


def _named(folder: Path) -> list[str]:
    """Options of a JVM for which this machine's name has an address of its own, to which nobody connects."""
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n192.0.2.1 {socket.gethostname()}\n")
    return [f"-Djdk.net.hosts.file={hosts}"]


def cluster_classes() -> list[str]:
    """The classes of the test-jar that stand on the base which starts bookies, below org.apache.bookkeeper."""
    PROJECT.class_path()
    names = [str(path.relative_to(APACHE).with_suffix("")).replace("/", ".") for path in APACHE.rglob("*.class")]
    top = [name for name in names if name.startswith(PACKAGE) and "$" not in name]
    javap = Path(find_java()).resolve().with_name("javap")
    told = subprocess.run([javap, "-cp", APACHE, *top], capture_output=True, text=True, check=True).stdout
    parents: dict[str, str] = {}
    concrete: set[str] = set()
    for kind, name, parent in re.findall(r"^(.*?)class (\S+?)(?:<.*?>)? extends ([\w.]+)", told, re.MULTILINE):
        parents[name] = parent
        if "abstract" not in kind:
            concrete.add(name)

    def stands_on_base(name: str) -> bool:
        parent = parents.get(name)
        return parent is not None and (parent == _BASE or stands_on_base(parent))

    return [name.removeprefix(PACKAGE) for name in concrete if stands_on_base(name)]
