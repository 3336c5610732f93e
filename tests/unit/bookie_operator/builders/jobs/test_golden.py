"""What the builders make of some BookieJobs, held against files that people read."""

from __future__ import annotations

import pytest

from tests.support.operator_jobs import CASES, GOLDEN, rendered


@pytest.mark.parametrize("case", CASES)
def test_what_is_built_is_what_the_file_says(case: str) -> None:
    expected = (GOLDEN / f"{case}.yaml").read_text(encoding="utf-8")
    assert rendered(case) == expected, "read the difference, then run `python -m tests.support.operator_jobs`"


def test_each_file_has_its_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(CASES)
