"""docker/images: which programs build and load the image, by a PATH of doubles."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.chart_files import ROOT

SYSTEM = ("bash", "git", "mktemp", "rm", "dirname", "cat", "env")
CASES = [
    (("docker",), "kind-dev", ["docker build -t podkeeper:x", "kind load docker-image podkeeper:x --name dev"]),
    (("podman",), "kind-dev", ["podman build", "podman save", "kind load image-archive"]),
    (("buildah",), "k3d-dev", ["buildah bud", "buildah push", "k3d image import"]),
    (("docker", "podman"), "minikube", ["docker build", "docker save", "minikube image load"]),
    (("docker",), "production", ["docker build", "push it where"]),
]


def images(folder: Path, programs: tuple[str, ...], context: str, **more: str) -> subprocess.CompletedProcess[str]:
    for name in SYSTEM:
        (folder / name).symlink_to(subprocess.run(["which", name], capture_output=True, text=True).stdout.strip())
    for name in programs:
        (folder / name).write_text("#!/bin/bash\nexit 0\n")
        (folder / name).chmod(0o755)
    (folder / "kubectl").write_text(f"#!/bin/bash\necho {context}\n")
    (folder / "kubectl").chmod(0o755)
    variables = {"PATH": str(folder), "DRY_RUN": "1", "HOME": os.environ.get("HOME", "/"), **more}
    return subprocess.run(
        [ROOT / "docker" / "images", "podkeeper:x"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(("programs", "context", "expected"), CASES, ids=lambda case: str(case))
def test_what_is_there_builds_and_loads(
    tmp_path: Path, programs: tuple[str, ...], context: str, expected: list[str]
) -> None:
    done = images(tmp_path, programs, context)
    assert done.returncode == 0, done.stderr
    for line, beginning in zip(done.stdout.splitlines(), expected, strict=False):
        assert beginning in line


def test_nothing_that_builds(tmp_path: Path) -> None:
    done = images(tmp_path, (), "kind-dev")
    assert (done.returncode, "buildah" in done.stderr) == (1, True)


def test_builder_and_loader_of_choice(tmp_path: Path) -> None:
    done = images(tmp_path, ("docker", "podman"), "kind-dev", BUILDER="podman", LOADER="none")
    assert done.stdout.startswith("podman build")
    assert "load" not in done.stdout
