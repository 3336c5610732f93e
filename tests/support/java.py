"""Java and Maven for the rings that run the reference implementation.

Invariants
- A missing tool is one line that names the Debian package.
- A project is built once for a given state of its pom and sources; a file lock keeps parallel runs from
  building twice. Its class path has nothing but archives, as `-Xshare` wants it.
- Nothing here starts a server. Any thread may call it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

_BUILD_SECONDS = 900
_STAMP = "podkeeper.stamp"
_CLASS_PATH = "podkeeper.classpath"
_OWN = "podkeeper.jar"

# What the stock start script gives each JVM (bin/common.sh of Apache BookKeeper).
NETTY_OPTIONS = (
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
)
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Of a Java that runs for a minute, the second compiler and parallel collection take half of the processor time."""


def kept_classes(class_path: str) -> Path:
    """Where classes of a project are kept as a Java has them in memory: `tests.interop.java_classes`."""
    return Path(class_path.partition(os.pathsep)[0]).with_suffix(".jsa")


def short_lived(class_path: str) -> tuple[str, ...]:
    """`SHORT_LIVED`, and the classes that were kept, if some were: most of a start is their loading and checking."""
    kept = kept_classes(class_path)
    return (*SHORT_LIVED, f"-XX:SharedArchiveFile={kept}", "-Xlog:cds=off") if kept.exists() else SHORT_LIVED


BOOKKEEPER_OPTIONS = (
    "-Djava.net.preferIPv4Stack=true",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
    *NETTY_OPTIONS,
)


class MissingToolError(RuntimeError):
    """A program of this machine is missing; the message names the package that holds it."""


def find_java() -> str:
    """Path of the `java` program: JAVA_HOME first, then PATH. Raises `MissingToolError`."""
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if candidate is None:
        raise MissingToolError("no Java here: apt-get install openjdk-17-jdk-headless")
    return candidate


def java_home() -> Path:
    """The folder that JAVA_HOME is to name. Raises `MissingToolError`."""
    return Path(find_java()).resolve().parents[1]


def find_maven() -> str:
    """Path of the `mvn` program. Raises `MissingToolError`, also when Java is there without its compiler."""
    java = Path(find_java()).resolve()
    if not java.with_name("javac").exists():
        raise MissingToolError(f"no Java compiler beside {java}: apt-get install openjdk-17-jdk-headless")
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingToolError("no Maven here: apt-get install maven")
    return maven


@dataclass(frozen=True)
class MavenProject:
    """One Maven project of this repository."""

    directory: Path
    tests: bool = False  # compile src/test too, and give its class path
    options: tuple[str, ...] = ()  # of Maven, such as another value of a property

    def class_path(self) -> str:
        """Compiles the project if anything changed since the last time; returns what `java -cp` takes."""
        find_maven()
        target = self.directory / "target"
        target.mkdir(exist_ok=True)
        with (target / "podkeeper.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self._state()
            stamp = target / _STAMP
            if not (stamp.exists() and stamp.read_text() == state and self._jars_exist(target)):
                stamp.unlink(missing_ok=True)
                self._build(target)
                stamp.write_text(state)
            own = [str(target / _OWN)] if (target / _OWN).exists() else []
            return os.pathsep.join([*own, (target / _CLASS_PATH).read_text().strip()])

    def _build(self, target: Path) -> None:
        scope = "test" if self.tests else "runtime"
        command = [
            find_maven(),
            "--quiet",
            "--batch-mode",
            "test-compile" if self.tests else "compile",
            "dependency:build-classpath",
            f"-Dmdep.outputFile={target / _CLASS_PATH}",
            f"-Dmdep.includeScope={scope}",
            *self.options,
        ]
        done = subprocess.run(
            command,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"Maven could not build {self.directory}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}")
        # Folders too: JUnit finds the classes of a package by its folder.
        classes = {
            path.relative_to(folder): path
            for folder in (target / "classes", target / "test-classes")
            for path in sorted(folder.rglob("*"))
        }
        (target / _OWN).unlink(missing_ok=True)
        if classes:
            with zipfile.ZipFile(target / _OWN, "w") as own:
                for name, path in classes.items():
                    own.write(path, name)

    def _state(self) -> str:
        digest = hashlib.sha256(" ".join((*self.options, _OWN)).encode())
        files = [self.directory / "pom.xml", *sorted((self.directory / "src").rglob("*"))]
        for path in files:
            if path.is_file():
                digest.update(str(path.relative_to(self.directory)).encode())
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _jars_exist(self, target: Path) -> bool:
        file = target / _CLASS_PATH
        return file.exists() and all(Path(p).exists() for p in file.read_text().strip().split(os.pathsep))
