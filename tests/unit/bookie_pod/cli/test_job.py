"""`bookie job`: becomes the job's process, or says in one line what is missing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bookie_pod.cli import main as command_line
from bookie_pod.cli.main import run


def test_the_list_of_jobs_and_the_exit_code_are_the_jobs_own() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "bookie_pod.cli.main", "job", "--help"], capture_output=True, text=True, check=True
    )
    assert "offload" in listed.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "bookie_pod.cli.main", "job", "ofload", "--no-such"], capture_output=True, text=True
    )
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["error"] == "unknown job 'ofload': did you mean offload?"


def test_arguments_are_passed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = []
    monkeypatch.setattr(command_line.os, "execv", lambda *arguments: passed.append(arguments))
    run(["job", "offload", "--all", "-h", "--target", "x y"])
    program = [sys.executable, "-m", "pyspark_bookie.jobs", "offload", "--all", "-h", "--target", "x y"]
    assert passed == [(sys.executable, program)]


def test_without_spark_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda name: None if name == "pyspark" else object())
    assert run(["job", "offload"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{sys.executable} -m pip install pyspark" in said
