"""An environment like the image's, after `docker/trim.py`: whatever the image runs works in it.

What `docker/trim_root.py` takes from the standard library cannot be imported there either.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image_scripts import load

# Compiling the environment takes a while.
pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
OWN = [*(ROOT / f"bookie_{part}" for part in ("protocol", "client", "pod")), ROOT / "operator" / "bookie_operator"]
PROGRAMS = {
    "bookie": "bookie_pod.cli.main",
    "bookie-operator": "bookie_operator.main",
    "kubectl-bookie": "bookie_operator.plugin.main",
}
IMPORT_ALL = """
import importlib, pkgutil, sys
def all_of(name):
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, f"{name}."):
        # What makes files of this repository has tools of its own.
        if not module.name.endswith((".generate", ".__main__")):
            yield module.name
            if module.ispkg:
                yield from all_of(module.name)
names = [name for package in sys.argv[1:] for name in all_of(package)]
for name in names:
    importlib.import_module(name)
print(len(names))
"""
KUBERNETES = """
from kubernetes import client
api = client.ApiClient()
pod = client.V1Pod(metadata=client.V1ObjectMeta(name="b-0"), spec=client.V1PodSpec(containers=[]))
print(client.__file__, api.sanitize_for_serialization(pod))
"""
ZONE = """
import zoneinfo
zoneinfo.reset_tzpath(to=[])
print(zoneinfo.ZoneInfo("Europe/Zurich").key)
"""
FAILURE = """
from bookie_pod import logs
logs.configure("console")
def read_index():
    raise ValueError("damaged")
try:
    read_index()
except ValueError:
    logs.logger("test").exception("no index")
"""


def copy_distribution(name: str, packages: Path) -> None:
    for file in importlib.metadata.distribution(name).files or []:
        if ".." not in file.parts and file.suffix != ".pyc":
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)


def run(environment: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{environment}/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    return subprocess.run(
        [environment / "bin" / command[0], *command[1:]],
        env=env,
        cwd=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def files(environment: Path) -> set[str]:
    return {str(path) for path in environment.rglob("*")}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("trimmed") / "podkeeper"
    # A virtual environment of the interpreter below this one: of its packages, nothing else is seen.
    subprocess.run([sys._base_executable, "-m", "venv", "--without-pip", place], check=True, timeout=60)
    (packages,) = place.glob("lib/python3*/site-packages")
    for name in re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements-runtime.lock").read_text(), re.MULTILINE):
        copy_distribution(name, packages)
    about = packages / "podkeeper.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(importlib.metadata.distribution("podkeeper").read_text("METADATA") or "")
    for package in OWN:
        shutil.copytree(package, packages / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for program, module in PROGRAMS.items():
        script = place / "bin" / program
        script.write_text(f"#!{place}/bin/python3\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    # Without `strip`, which the build may have to do without.
    command = [place / "bin" / "python3", ROOT / "docker" / "trim.py", place]
    subprocess.run(command, check=True, env={"PATH": str(place / "bin")}, timeout=300)
    gone = load("trim_root").STANDARD_LIBRARY
    (packages / "standard_library.pth").write_text(f"import sys; sys.modules.update(dict.fromkeys({gone!r}))\n")
    yield place
    shutil.rmtree(place)


def test_every_module_is_imported(environment: Path) -> None:
    before = files(environment)
    done = run(environment, "python3", "-c", IMPORT_ALL, *(package.name for package in OWN))
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 300
    assert files(environment) == before, "something was not compiled"


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_tell_what_they_do(program: str, environment: Path) -> None:
    done = run(environment, program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout or "usage:" in done.stdout


def test_the_main_job_runs(environment: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.log"
    file.write_bytes(bytes(range(256)) * 4096)
    done = run(environment, "bookie", "trial", str(file))
    assert done.returncode == 0, done.stderr


def test_the_kubernetes_client_is_whole(environment: Path) -> None:
    done = run(environment, "python3", "-c", KUBERNETES)
    assert done.stderr == ""
    assert done.stdout.split(" ", 1) == [
        f"{environment}/lib/python3.{sys.version_info.minor}/site-packages/libraries.zip/kubernetes/client/__init__.pyc",
        "{'metadata': {'name': 'b-0'}, 'spec': {'containers': []}}\n",
    ]


def test_errors_are_shown_to_people(environment: Path) -> None:
    """By rich and pygments, out of the archive."""
    done = run(environment, "python3", "-c", FAILURE)
    assert done.returncode == 0
    assert "no index" in done.stderr
    assert "ValueError: damaged" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr


def test_time_zones_are_known_where_the_system_has_none(environment: Path) -> None:
    done = run(environment, "python3", "-c", ZONE)
    assert (done.stdout, done.stderr) == ("Europe/Zurich\n", "")
