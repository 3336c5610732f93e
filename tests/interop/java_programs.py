"""Running the programs and the JUnit classes of `tests/interop/java`. Any thread may call these."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.java import BOOKKEEPER_OPTIONS, MavenProject, find_java, short_lived

PROJECT = MavenProject(Path(__file__).parent / "java", tests=True)
PACKAGE = "dev.podkeeper.interop"
_ENTRY_LOG_DUMP = Path(__file__).with_name("EntryLogDump.java")
_SHELL_COMMANDS = Path(__file__).with_name("ShellCommands.java")
_SECONDS = 110


class JavaProgramError(AssertionError):
    """A Java program or JUnit class failed; the message is its output."""


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
        *short_lived(class_path),
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


def _run_source(class_path: str, file: Path, *arguments: str) -> str:
    return _run([find_java(), *short_lived(class_path), "-cp", class_path, str(file), *arguments])


def run_program(class_path: str, name: str, metadata_uri: str, *arguments: str) -> str:
    """Runs a class of the interop package to its end; returns what it printed."""
    return _run(command(class_path, f"{PACKAGE}.{name}", metadata_uri, *arguments))


def start_program(
    class_path: str, name: str, metadata_uri: str, output: Path, *arguments: str
) -> subprocess.Popen[bytes]:
    """Starts a class of the interop package; what it prints goes to `output`. The caller ends it."""
    with output.open("ab") as file:
        return subprocess.Popen(
            command(class_path, f"{PACKAGE}.{name}", metadata_uri, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def dump_entry_logs(class_path: str, folder: Path, log_ids: Iterable[int]) -> list[str]:
    """What the reference's own reader finds in entry logs below a folder: lines of entries, and of maps of ledgers."""
    said = _run_source(class_path, _ENTRY_LOG_DUMP, str(folder), *map(str, log_ids))
    return [line for line in said.splitlines() if line.split(" ")[0] in ("entry", "map", "nomap")]


def shell_commands(class_path: str) -> dict[str, list[str]]:
    """The commands of Apache's shell, each with its options: `short|long`, with `=` behind those that take a value."""
    said = _run_source(class_path, _SHELL_COMMANDS)
    lines = [line.split() for line in said.splitlines() if line.startswith("command ")]
    return {name: options for _, name, *options in lines}


def run_junit(class_path: str, metadata_uri: str, bookies: int, *selection: str) -> None:
    """Runs JUnit classes in one JVM; `selection`: the launcher's options that say which. Raises `JavaProgramError`,
    with the tree of all tests, if one failed or none was found."""
    options = ("--fail-if-no-tests", "--disable-banner", "--disable-ansi-colors", "--details=tree")
    launcher = "org.junit.platform.console.ConsoleLauncher"
    _run(command(class_path, launcher, metadata_uri, "execute", *selection, *options, bookies=bookies))
