"""What the image is built from: the same versions as everywhere else, and nothing that is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

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


@pytest.mark.parametrize("name", ["requirements-runtime.lock", "requirements-build.lock"])
def test_the_image_has_what_the_tests_run_with(name: str) -> None:
    everything, some = locked("requirements.lock"), locked(name)
    assert some
    assert {package: each for package, each in some.items() if everything.get(package) != each} == {}


def test_everything_that_is_needed_is_locked() -> None:
    needed = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["operator"])
    assert needed - locked("requirements-runtime.lock").keys() == set()
    assert names(PROJECT["optional-dependencies"]["dev"]) & locked("requirements-runtime.lock").keys() <= needed


def test_what_is_copied_holds_every_package() -> None:
    kept = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    packages = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages - kept == set()
    assert {"operator", "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "docker"} <= kept
    for file in re.findall(r"[\w-]+\.lock|docker/\w+\.py", DOCKERFILE):
        assert (ROOT / file).exists()
        assert file.partition("/")[0] in kept


def test_its_version_is_the_projects() -> None:
    assert f"ARG VERSION={PROJECT['version']}\n" in DOCKERFILE


def test_it_is_no_root_and_begins_with_the_program() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in last
    assert '\nENTRYPOINT ["bookie"]\n' in last
    assert "apt-get" not in last


@pytest.fixture
def trim() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trim", ROOT / "docker" / "trim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_package_works_from_its_archive(trim: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "talkative"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("def fail():\n    raise ValueError('a line of the source')\n")
    trim.zip_package(tmp_path, "talkative")
    assert {path.name for path in tmp_path.iterdir()} == {"talkative.zip", "talkative.pth"}
    program = (
        f"import site; site.addsitedir({str(tmp_path)!r}); import talkative.inner as i; print(i.__file__); i.fail()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{tmp_path}/talkative.zip/talkative/inner/__init__.pyc"
    assert done.stderr.strip().endswith("ValueError: a line of the source")


def test_what_is_not_used_goes(trim: ModuleType, tmp_path: Path) -> None:
    kept = ["numpy/core.py", "numpy/_core/umath.so", "bookie_pod/tests_of_disks.py", "kubernetes/client/api.py"]
    gone = ["numpy/linalg/tests/test_it.py", "kubernetes/aio/client.py", "uvloop/loop.pyx", "grpc/cygrpc.pyi"]
    for name in (*kept, *gone):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    trim.trim(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted(kept)


def test_programs_of_others_go(trim: ModuleType, tmp_path: Path) -> None:
    for name in ("bookie", "bookie-operator", "kubectl-bookie", "python3.11", "f2py", "kopf"):
        (tmp_path / name).touch()
    trim.trim_programs(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bookie",
        "bookie-operator",
        "kubectl-bookie",
        "python3.11",
    ]
