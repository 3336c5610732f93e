"""What the image is built from: the same versions as everywhere else, and nothing that is missing."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes by package."""
    text = (ROOT / name).read_text()
    entries = re.findall(r"^([a-z0-9._-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", text, re.MULTILINE)
    return {package: (version, frozenset(re.findall(r"sha256:\w+", hashes))) for package, version, hashes in entries}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", each, maxsplit=1)[0].lower() for each in requirements}


@pytest.mark.parametrize("name", ["requirements-runtime.lock", "requirements-build.lock", "requirements-spark.lock"])
def test_the_image_has_what_the_tests_run_with(name: str) -> None:
    everything, some = locked("requirements.lock"), locked(name)
    assert some
    assert {package: each for package, each in some.items() if everything.get(package) != each} == {}


def test_everything_that_is_needed_is_locked() -> None:
    needed = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["operator"])
    assert needed - locked("requirements-runtime.lock").keys() == set()
    assert names(PROJECT["optional-dependencies"]["dev"]) & locked("requirements-runtime.lock").keys() <= needed


def test_the_image_with_spark_has_what_jobs_need() -> None:
    needed = names(PROJECT["optional-dependencies"]["spark"]) | locked("requirements-runtime.lock").keys()
    assert needed - locked("requirements-spark.lock").keys() == set()


def test_what_is_copied_holds_every_package() -> None:
    kept = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    packages = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.glob("*/__init__.py")} - {
        "tests",
        "benchmarks",
        "release",
        "website",
    }
    assert packages - kept == set()
    assert {"operator", "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "docker"} <= kept
    for file in re.findall(r"[\w-]+\.lock|docker/[\w/.]+", DOCKERFILE):
        assert (ROOT / file).exists()
        assert file.partition("/")[0] in kept


def test_version_and_revision_are_given_to_it() -> None:
    """pyproject.toml alone has the version; docker/images reads it there."""
    assert DOCKERFILE.count("\nARG VERSION=unknown\n") == DOCKERFILE.count('image.version="${VERSION}"') == 3


def test_it_is_no_root_and_begins_with_the_program() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert last.startswith("scratch\n")
    assert "\nCOPY --from=root / /\n" in last
    assert "\nUSER 10001:10001\n" in last
    assert '\nENTRYPOINT ["bookie"]\n' in last
    assert "apt-get" not in last


def test_the_image_with_spark_is_no_root_and_is_not_the_default() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    (spark,) = [stage for stage in stages if stage.startswith("${PYTHON_IMAGE} AS spark\n")]
    assert spark != stages[-1]
    assert "\nUSER 10001:10001\n" in spark
    assert '\nENTRYPOINT ["/opt/podkeeper/entrypoint"]\n' in spark


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["job", "audit", "--dry-run"], ["bookie", "job", "audit", "--dry-run"]),
        (
            ["driver", "--class", "A", "local:///opt/podkeeper/job.py", "audit"],
            [
                *("spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7", "--deploy-mode", "client"),
                *("--class", "A", "local:///opt/podkeeper/job.py", "audit"),
            ],
        ),
    ],
)
def test_what_the_entry_point_begins(arguments: list[str], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for place in (tmp_path / "bookie", tmp_path / "bin" / "spark-submit"):
        place.write_text('#!/bin/sh\necho "${0##*/}"\nprintf "%s\\n" "$@"\n')
        place.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SPARK_HOME": str(tmp_path),
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7",
    }
    entry = ROOT / "docker" / "spark" / "entrypoint"
    done = subprocess.run([entry, *arguments], env=env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == expected
