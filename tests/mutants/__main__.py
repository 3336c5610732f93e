"""`python -m tests.mutants --number 20 --seed 7`: so many seeded mutants, and which of them the tests notice.

The repository is copied, as git knows it. Each mutant is one change of one file of the copy; it meets the tests that
import the file, then those of its own folder in tests/unit, then those round it, until one fails. A test that fails
without a mutant too has killed nothing, so whatever killed is run on the unchanged copy once more. First of all a
syntax error is planted, which shows that it is the copy that the tests import. The exit code is 1 if fewer than
`--least` of a hundred were killed.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutations import WEIGHTS, Mutation, mutations

ROOT = Path(__file__).parents[2]
_LIMIT_S = 240
"""For the tests of one stage."""
_TEST_S = 60
_IMPORTERS = 8
"""More files of tests than these say little of what they test."""
_LEAST_BYTES = 1200
"""Smaller files have little but names in them."""
_NAMES_ONLY = frozenset({"__init__.py", "interface.py", "metrics.py", "names.py", "options.py", "status.py"})
_UNIT = "tests/unit/"
_ENDED = f"more than {_LIMIT_S} s"
_SEEDS = "tests/simulation/test_seeds.py"
_HEALING = "tests/simulation/test_healing_seeds.py"

GROUPS = {
    "bookie_pod/storage/journal": ["tests/crash/test_journal_crash.py", "tests/contract/test_restarts.py"],
    "bookie_pod/storage/engines": ["tests/contract/test_ledger_storage.py", "tests/crash/test_memtable_engines.py"],
    "bookie_pod/storage/entry_log": ["tests/contract/test_ledger_storage.py", "tests/crash/test_entry_log.py"],
    "bookie_pod/storage/index": ["tests/contract/test_ledger_storage.py", "tests/crash/test_index_tools.py"],
    "bookie_pod/storage/gc": ["tests/crash/test_garbage_collection.py", f"{_UNIT}bookie_pod/node"],
    "bookie_pod/ledgers": ["tests/contract/test_fencing.py", f"{_UNIT}bookie_pod/server/tcp"],
    "bookie_pod/server/tcp": ["tests/contract/test_requests.py", "tests/contract/test_backpressure.py", "tests/fuzz"],
    "bookie_pod/autorecovery/auditor": [f"{_UNIT}bookie_pod/admin", _HEALING],
    "bookie_pod/autorecovery/decommission": ["tests/crash/test_decommission.py", _HEALING],
    "bookie_pod/autorecovery/worker": [_HEALING],
    "bookie_client/writing": ["tests/contract/test_client_operations.py", _SEEDS],
    "bookie_client/recovery": ["tests/contract/test_scenarios_recovery.py", _SEEDS],
    "bookie_client/reading": ["tests/contract/test_client_operations.py", _SEEDS],
    "bookie_client/replication": [f"{_UNIT}bookie_pod/autorecovery/worker", _HEALING],
    "operator/bookie_operator/planner": [f"{_UNIT}bookie_operator/reconcile"],
    "pyspark_bookie/sink": [f"{_UNIT}pyspark_bookie"],
    "pyspark_bookie/source": [f"{_UNIT}pyspark_bookie"],
}
"""Where mutants are made, in turn, and the tests round it."""


@dataclass(frozen=True)
class Mutant:
    file: str
    """In the repository."""
    mutation: Mutation
    round_it: list[str]

    def __str__(self) -> str:
        return f"{self.file}:{self.mutation.line} {self.mutation.kind}, now {self.mutation.new.strip()[:60]!r}"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    killer: str
    """The test that failed; empty: none."""


def drawn(root: Path, number: int, seed: int) -> list[Mutant]:
    """The groups in turn; in a group files by their size, each once; of a file the kind first, then the place."""
    rng = random.Random(seed)
    files = {
        group: [
            path
            for path in sorted((root / group).rglob("*.py"))
            if path.stat().st_size >= _LEAST_BYTES and path.name not in _NAMES_ONLY
        ]
        for group in GROUPS
    }
    made: list[Mutant] = []
    while len(made) < number and any(files.values()):
        for group in random.Random(f"{seed}/{len(made)}").sample(list(GROUPS), len(GROUPS)):
            if not files[group] or len(made) == number:
                continue
            path = rng.choices(files[group], [one.stat().st_size for one in files[group]])[0]
            files[group].remove(path)
            found = mutations(path.read_bytes())
            if found:
                kinds = sorted({one.kind for one in found})
                kind = rng.choices(kinds, [WEIGHTS[one] for one in kinds])[0]
                mutation = rng.choice([one for one in found if one.kind == kind])
                made.append(Mutant(str(path.relative_to(root)), mutation, GROUPS[group]))
    return made


class Copy:
    """Of the repository, in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in listed.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        self._written = itertools.count(int(time.time()) + 10)

    def _write(self, path: Path, content: bytes) -> None:
        """With a time that no other content of this file had: what was compiled is known by time and size."""
        path.write_bytes(content)
        written = next(self._written)
        os.utime(path, (written, written))

    def failing(self, file: str, content: bytes, tests: list[str], but: Sequence[str] = ()) -> str:
        """The first of these tests that fails with this content, or a word for how they ended; empty: none failed."""
        path = self.root / file
        before = path.read_bytes()
        self._write(path, content)
        try:
            return self._run(tests, but)
        finally:
            self._write(path, before)

    def _run(self, tests: list[str], but: Sequence[str]) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'operator'}",
            "PYTHONHASHSEED": "0",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={_TEST_S}"]
        command += [
            "-m",
            "not change and not slow and not interop and not pulsar and not peer and not seeds and not e2e",
            *tests,
        ]
        command += [f"--deselect={test}" for test in but]
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as child:
            try:
                output, _ = child.communicate(timeout=_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
                return _ENDED
        if child.returncode in (0, 5):  # passed, or nothing of this ring is there
            return ""
        lines = [line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
        return lines[0].split(" ", 1)[1].split(" - ")[0] if lines else f"exit code {child.returncode}"


class Importers:
    """Which tests in tests/unit import a module themselves."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._of: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for path in sorted((root / _UNIT).rglob("test_*.py")):
            modules = set(_imported(path))
            for module in modules:
                self._of[module].append((len(modules), str(path.relative_to(root))))

    def stages(self, file: str) -> list[list[str]]:
        """Tests of a file: its own and those that import it, those first which import little else; its folder's."""
        path = Path(file.removeprefix("operator/"))
        folder = Path(_UNIT) / path.parent
        while not (self._root / folder).is_dir():
            folder = folder.parent
        own = folder / f"test_{path.name}"
        importing = [test for _, test in sorted(self._of[".".join(path.with_suffix("").parts)])[:_IMPORTERS]]
        first = dict.fromkeys([*([str(own)] if (self._root / own).exists() else []), *importing])
        return [*([list(first)] if first else []), [str(folder)]]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def killer_of(mutant: Mutant, copy: Copy, stages: list[list[str]], weak: list[str], say: Callable[[str], None]) -> str:
    """The test that notices it; empty: none does. `weak`: tests that fail without a mutant too; more are added."""
    source = (copy.root / mutant.file).read_bytes()
    mutated = mutant.mutation.of(source)
    for stage in stages:
        while (found := copy.failing(mutant.file, mutated, stage, weak)) not in ("", *weak):
            if not copy.failing(mutant.file, source, [found] if "::" in found else stage):
                return found
            say(f"{found} without a mutant too")
            if "::" not in found:
                break
            weak.append(found)
    return ""


def judged(copy: Copy, mutants: list[Mutant], near: bool, say: Callable[[str], None]) -> Iterator[Verdict]:
    """`near`: by the tests that import the file alone."""
    importers = Importers(copy.root)
    weak: list[str] = []
    for mutant in mutants:
        began = time.monotonic()
        stages = [*importers.stages(mutant.file), *([one] for one in mutant.round_it)]
        killer = killer_of(mutant, copy, stages[:1] if near else stages, weak, say)
        spent = round(time.monotonic() - began)
        say(f"{'killed by ' + killer if killer else 'SURVIVED'} after {spent} s: {mutant}")
        yield Verdict(mutant, killer)


def table(verdicts: list[Verdict]) -> Iterator[str]:
    """For docs/testing.md."""
    all_of = Counter(str(Path(verdict.mutant.file).parent) for verdict in verdicts)
    killed = Counter(str(Path(verdict.mutant.file).parent) for verdict in verdicts if verdict.killer)
    yield "| folder | mutants | killed |"
    yield "|---|---|---|"
    for folder, number in sorted(all_of.items()):
        yield f"| `{folder}` | {number} | {killed[folder]} |"
    yield f"| **all** | {len(verdicts)} | {killed.total()} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Do the tests notice seeded mutants?")
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="leave out so many, which an interrupted run has had")
    parser.add_argument("--near", action="store_true", help="only the tests that import the file: a quick first look")
    parser.add_argument("--least", type=float, default=0.0, help="per cent that have to be killed")
    parser.add_argument("--list", action="store_true", help="only say which they are")
    options = parser.parse_args()
    if options.list:
        print(*drawn(ROOT, options.number, options.seed), sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        mutants = drawn(copy.root, options.number, options.seed)[options.first :]
        if not copy.failing("bookie_protocol/keys.py", b"(", [f"{_UNIT}bookie_protocol/test_keys.py"]):
            print("the tests do not import the copy: no mutant would be noticed", file=sys.stderr)
            return 2
        verdicts = list(judged(copy, mutants, options.near, lambda line: print(line, flush=True)))
    print("", *table(verdicts), sep="\n")
    return int(100 * sum(bool(one.killer) for one in verdicts) < options.least * len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
