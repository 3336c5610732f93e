"""The workflows of GitHub: what they may do, what they run, and which programs of others they use.

`make release-check` lints them with actionlint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from release.__main__ import main
from release.facts import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
_PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")
_COMMAND = re.compile(r"-m release ([a-z0-9]+)")


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield f"{path.name}: {name}", job


def scripts() -> str:
    return "\n".join(step.get("run", "") for _, job in jobs() for step in job.get("steps", []))


def test_programs_of_others_are_named_by_commit() -> None:
    for path in WORKFLOWS:
        uses = re.findall(r"uses: (.+)", path.read_text())
        assert uses
        assert [each for each in uses if not _PINNED.fullmatch(each) and not each.startswith("./")] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_alone_and_each_job_ends(path: Any) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120


def test_texts_of_strangers_are_no_part_of_a_script() -> None:
    """A branch, a tag or a title comes through the environment."""
    assert "${{" not in scripts()


def test_what_the_workflows_run_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(_TARGET.findall(scripts()))
    assert targets >= {"check", "release-check"}
    assert [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []
    commands = set(_COMMAND.findall(scripts() + makefile))
    assert commands >= {"make", "tag", "notes", "arm64"}
    assert commands - main.commands.keys() == set()


def test_images_are_built_for_both_processors_with_provenance() -> None:
    (build,) = [
        step["with"]
        for _, job in jobs()
        for step in job.get("steps", [])
        if "build-push-action" in step.get("uses", "")
    ]
    assert build["platforms"] == "linux/amd64,linux/arm64"
    assert (build["provenance"], build["sbom"]) == ("mode=max", True)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    (images,) = [job for name, job in jobs() if name == "release.yml: images"]
    targets = {each["target"] for each in images["strategy"]["matrix"]["include"]}
    assert targets == {"", "spark", "pulsar"}
    assert targets - {""} <= stages
