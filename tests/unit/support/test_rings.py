"""The table of rings names tests that there are, and marks what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import rings
from tests.support.rings import Later

ROOT = Path(__file__).parents[3]
TABLE = rings.read(rings.TABLE.read_text())


def functions(path: Path) -> set[str]:
    files = (
        [path] if path.is_file() else path.parent.glob(f"{path.name}*.py") if not path.is_dir() else path.rglob("*.py")
    )
    return {
        name for file in files for name in re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: f"{entry.ring}: {entry.why[:40]}")
def test_every_entry_is_of_tests_that_there_are_and_says_why(entry: Later) -> None:
    there: set[str] = set()
    for part in entry.tests:
        file, _, name = part.partition("::")
        found = functions(ROOT / file)
        assert found, f"{file} has no tests"
        assert not name or name.partition("[")[0].rpartition("::")[2] in found, part
        there |= found
    for end in entry.keeps:
        name = end.removeprefix("::").partition("[")[0]
        assert not name or name in there, f"{end} is kept and not there"
    assert entry.why
    assert entry.covered


def test_names_are_whole_words_and_parameters_may_be_begun() -> None:
    entry = Later("change", ("tests/a/", "tests/b.py::test_one", "tests/b.py::test_two[x"), "", "", ("::test_kept",))
    taken = ["tests/a/c.py::test_x", "tests/b.py::test_one", "tests/b.py::test_one[3]", "tests/b.py::test_two[x-1]"]
    assert all(map(entry.takes, taken))
    left = ["tests/a/c.py::test_kept", "tests/b.py::test_one_more", "tests/b.py::test_two[y]", "tests/ab.py::test_one"]
    assert not any(map(entry.takes, left))


def test_of_some_tests_only_those_with_a_parameter_wait() -> None:
    entry = Later("change", ("tests/b.py",), "", "", parameters=("served",))
    assert all(map(entry.takes, ["tests/b.py::test_one[served]", "tests/b.py::test_two[3-served-x]"]))
    assert not any(map(entry.takes, ["tests/b.py::test_one", "tests/b.py::test_served[embedded-served_by]"]))


def test_files_that_are_not_read_have_no_test_that_stays() -> None:
    """Every file of the short rings, as `make check` and `.ci/run` see it."""
    unread = 0
    for path in (*(ROOT / "tests/unit").rglob("test_*.py"), *(ROOT / "tests/contract").rglob("test_*.py")):
        for out in ({"wide", "change"}, {"change"}):
            if rings.waits(path, " and ".join(f"not {ring}" for ring in out), TABLE):
                unread += 1
                for name in functions(path):
                    test = f"{path.relative_to(ROOT).as_posix()}::{name}"
                    assert any(entry.ring in out and entry.takes(test) for entry in TABLE), test
    assert unread > 100


@pytest.mark.parametrize(
    ("expression", "waits"),
    [
        ("not slow and not wide", True),
        ("not slow", False),
        ("", False),
        ("wide", False),
        ("not wide or slow", False),
        ("not (wide or slow)", False),
        ("slow or (not wide and not change)", False),
    ],
)
def test_only_expressions_that_leave_a_mark_out_for_sure_leave_files_unread(expression: str, waits: bool) -> None:
    file = ROOT / "tests/unit/support/test_timeouts.py"
    table = [Later("wide", ("tests/unit/support/test_timeouts.py",), "", "")]
    assert rings.waits(file, expression, table) is waits
    assert not rings.waits(file, expression, [replace(table[0], parameters=("3",))])
    assert not rings.waits(file, expression, [replace(table[0], keeps=("::test_takes_too_long",))])
    assert rings.waits(file, expression, [replace(table[0], keeps=("::test_elsewhere",))]) is waits


def test_rings_and_keys_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="'never'"):
        rings.read('[[later]]\nring = "never"\ntests = []\nwhy = ""\ncovered = ""')
    with pytest.raises(TypeError, match="whi"):
        rings.read('[[later]]\nring = "slow"\ntests = []\nwhi = ""\ncovered = ""')
