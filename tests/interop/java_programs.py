"""Running the programs and the JUnit classes of `tests/interop/java`. Any thread may call these."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.java import BOOKKEEPER_OPTIONS, MavenProject, find_java

PROJECT = MavenProject(Path(__file__).parent / "java", tests=True)
_PACKAGE = "dev.podkeeper.interop"
_SECONDS = 110


class JavaProgramError(AssertionError):
    """A Java program or JUnit class failed; the message is its output."""


def junit_classes() -> list[str]:
    """The simple names of all JUnit classes."""
    sources = (PROJECT.directory / "src" / "test" / "java").rglob("*Test.java")
    return sorted(path.stem for path in sources if path.stem != "ClientTest")


def command(
    class_path: str,
    main: str,
    metadata_uri: str,
    *arguments: str,
    bookies: int = 1,
    launcher: Sequence[str] = (),
) -> list[str]:
    """The command line of a class with a main method. `launcher`: what runs Java, if it is not this machine's."""
    return [
        *(launcher or [find_java()]),
        "-Xmx384m",
        "-XX:MaxDirectMemorySize=384m",
        "-XX:TieredStopAtLevel=1",  # short runs: the optimising compiler costs more than it gives
        *BOOKKEEPER_OPTIONS,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        f"-Dpodkeeper.metadata={metadata_uri}",
        f"-Dpodkeeper.bookies={bookies}",
        "-cp",
        class_path,
        main,
        *arguments,
    ]


def _run(line: Sequence[str]) -> str:
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise JavaProgramError(f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def run_program(class_path: str, name: str, metadata_uri: str, *arguments: str) -> str:
    """Runs a class of the interop package to its end; returns what it printed."""
    return _run(command(class_path, f"{_PACKAGE}.{name}", metadata_uri, *arguments))


def start_program(
    class_path: str, name: str, metadata_uri: str, output: Path, *arguments: str
) -> subprocess.Popen[bytes]:
    """Starts a class of the interop package; what it prints goes to `output`. The caller ends it."""
    with output.open("ab") as file:
        return subprocess.Popen(
            command(class_path, f"{_PACKAGE}.{name}", metadata_uri, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def run_junit(class_path: str, name: str, metadata_uri: str, bookies: int) -> str:
    """Runs one JUnit class; returns the summary. Raises `JavaProgramError` if a test failed or none was found."""
    return _run(
        command(
            class_path,
            "org.junit.platform.console.ConsoleLauncher",
            metadata_uri,
            "execute",
            f"--select-class={_PACKAGE}.{name}",
            "--fail-if-no-tests",
            "--disable-banner",
            "--disable-ansi-colors",
            "--details=tree",
            bookies=bookies,
        )
    )
