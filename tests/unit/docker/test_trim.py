"""What `docker/trim.py` and `docker/trim_root.py` take away, and what they leave."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.image_scripts import load


@pytest.fixture
def trim() -> ModuleType:
    return load("trim")


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def left(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_package_works_from_its_archive(trim: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "talkative"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("def fail():\n    raise ValueError('a line of the source')\n")
    shutil.copytree(package, tmp_path / "silent")
    trim.zip_packages(tmp_path, ["talkative"], ["silent"])
    assert {path.name for path in tmp_path.iterdir()} == {"libraries.zip", "libraries.pth"}
    # As logs do it; Python's own last words look for files alone.
    program = (
        "import site, sys, traceback; site.addsitedir(sys.argv[1]); import {0}.inner as inner; print(inner.__file__)\n"
        "try: inner.fail()\n"
        "except ValueError: traceback.print_exc()"
    )
    shown = {"talkative": "raise ValueError('a line of the source')", "silent": ", line 2, in fail"}
    for name, line in shown.items():
        command = [sys.executable, "-c", program.format(name), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == f"{tmp_path}/libraries.zip/{name}/inner/__init__.pyc"
        *trace, error = done.stderr.strip().splitlines()
        assert trace[-1].endswith(line)
        assert error == "ValueError: a line of the source"


@pytest.mark.parametrize("jobs", [False, True])
def test_what_is_not_used_goes(jobs: bool, trim: ModuleType, tmp_path: Path) -> None:
    """What jobs may use stays where Spark is."""
    kept = ["numpy/core.py", "numpy/_core/umath.so", "bookie_pod/tests_of_disks.py", "kubernetes/client/api.py"]
    gone = ["numpy/linalg/tests/test_it.py", "kubernetes/aio/client.py", "uvloop/loop.pyx", "grpc/cygrpc.pyi"]
    gone += ["numpy/_core/_umath_tests.cpython-311.so", "numpy/_core/_simd.cpython-311.so", "google/api/http_pb2.py"]
    for_jobs = ["numpy/random/_generator.so", "numpy/fft/__init__.py"]
    if jobs:
        kept += [*for_jobs, "pyspark/__init__.py"]
    else:
        gone += for_jobs
    make(tmp_path, *kept, *gone)
    trim.trim(tmp_path)
    assert left(tmp_path) == sorted(kept)


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


def test_what_only_builds_packages_or_draws_windows_goes_from_below(tmp_path: Path) -> None:
    trim_root = load("trim_root")
    kept = [
        *("lib/python3.11/shutil.py", "lib/python3.11/unittest/case.py", "lib/python3.11/lib-dynload/_ssl.so"),
        *("lib/python3.11/__pycache__/shutil.cpython-311.pyc", "site/apt_pkg.so", "site/pipes_of_ours/__init__.py"),
        *("bin/python3", "bin/python3.11", "bin/pipesz", "usr/lib/x86_64-linux-gnu/libc.so.6", "bin/wheelhouse"),
    ]
    gone = [
        *("lib/python3.11/turtle.py", "lib/python3.11/__pycache__/turtle.cpython-311.pyc"),
        *("lib/python3.11/test/test_os.py", "lib/python3.11/config-3.11-x86_64-linux-gnu/Makefile"),
        *("lib/python3.11/lib-dynload/_testcapi.so", "lib/python3.11/lib-dynload/_tkinter.so"),
        *("site/pip/__main__.py", "site/pip-24.0.dist-info/METADATA", "site/setuptools-66.1.1.egg-info"),
        *("site/distutils-precedence.pth", "bin/pip", "bin/pip3.11", "bin/idle3", "bin/python3.11-config"),
        *("usr/lib/x86_64-linux-gnu/gconv/IBM037.so", "usr/share/python-wheels/pip.whl"),
    ]
    make(tmp_path, *kept, *gone)
    folders = tmp_path / "lib/python3.11", [tmp_path / "site", tmp_path / "none"], [tmp_path / "bin"], tmp_path
    for path in list(trim_root.unused(*folders)):
        trim_root.remove(path)
    assert left(tmp_path) == sorted(kept)
