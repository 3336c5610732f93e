"""Helm on the charts of the work tree, without a cluster.

Threads: any.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = "1.30.0"
"""The oldest that the charts are for; `helm template` knows of no cluster."""
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
"""Every such Kubernetes has them."""
NAMESPACE = "storage"
_SECONDS = 120

Object = dict[str, Any]


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"the charts are judged by {name}, which is not on the PATH", pytrace=False)
    return found


def run_helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """`values`: given as `-f -`."""
    given = [] if values is None else ["-f", "-"]
    return subprocess.run(
        [program("helm"), *arguments, *given],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def lint(chart: Path, values: Path) -> None:
    done = run_helm("lint", str(chart), "--strict", "--kube-version", KUBERNETES, "-f", str(values))
    assert done.returncode == 0, done.stdout + done.stderr


def render(
    chart: Path, *files: Path, release: str = "podkeeper", values: Mapping[str, Any] | None = None
) -> list[Object]:
    """The objects, those of `helm test` too."""
    done = render_process(chart, *files, release=release, values=values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def refused(chart: Path, values: Mapping[str, Any], *files: Path) -> str:
    """What Helm says of wrong values."""
    done = render_process(chart, *files, values=values)
    assert done.returncode != 0, done.stdout
    return done.stderr


def render_process(
    chart: Path, *files: Path, release: str = "podkeeper", values: Mapping[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    given = [argument for file in files for argument in ("-f", str(file))]
    options = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--api-versions", POLICIES]
    return run_helm("template", release, str(chart), *options, *given, values=values)
