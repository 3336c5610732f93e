"""The table of rings names tests that there are, and marks what it says."""

from __future__ import annotations

import re
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
        assert not name or name.partition("[")[0] in found, part
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


def test_rings_and_keys_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="ring 'never'; known: wide, change, slow"):
        rings.read('[[later]]\nring = "never"\ntests = []\nwhy = ""\ncovered = ""')
    with pytest.raises(TypeError, match="whi"):
        rings.read('[[later]]\nring = "slow"\ntests = []\nwhi = ""\ncovered = ""')


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert "\n".join(rings.listing(TABLE)) in page, "python -m tests.support.rings prints what belongs there"
