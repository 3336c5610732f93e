"""Wheels for arm64: what uv is asked, and what its answers mean."""

from __future__ import annotations

import subprocess

from release.arm64 import FROM_SOURCE, LOCKS, PLATFORM, missing_wheels
from release.facts import ROOT
from release.sbom import locked


def test_every_locked_package_is_asked_for_but_those_that_have_no_wheel() -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    assert missing_wheels(ROOT, run) == []
    for lock, command in zip(LOCKS, asked, strict=True):
        names = {each.name for each in locked(ROOT / lock)}
        assert {
            word.partition("=")[2] for word in command if word.startswith("--only-binary=")
        } == names - FROM_SOURCE.keys()
        assert PLATFORM in command


def test_a_lock_file_without_an_answer_or_a_wheel_is_named() -> None:
    said = "error: No solution found\n\n  cause: grpcio has no usable wheels\nhint: something\n"
    faults = missing_wheels(ROOT, lambda command: subprocess.CompletedProcess(command, 1, "", said))
    assert [fault.partition(": ")[0] for fault in faults] == list(LOCKS)
    assert all("grpcio" in fault and "hint" not in fault and "\n" not in fault for fault in faults)
