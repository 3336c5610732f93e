"""Each thing that a checkout repeats is broken once, and the check says so in one line that names the place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from release.changes import section
from release.checking import check_checkout
from release.facts import ROOT, ReleaseError, version_of
from release.mentions import write_version
from tests.unit.release.conftest import Broken

VERSION = version_of(ROOT)
OTHER = "7.8.9"


def test_this_checkout_agrees_with_itself(checkout: Path) -> None:
    assert check_checkout(ROOT) == []
    assert check_checkout(checkout) == []


@pytest.mark.parametrize(
    ("path", "before", "after", "named"),
    [
        ("charts/podkeeper-operator/Chart.yaml", f"\nversion: {VERSION}", f"\nversion: {OTHER}", "version"),
        ("charts/podkeeper-cluster/Chart.yaml", f'appVersion: "{VERSION}"', f'appVersion: "{OTHER}"', "appVersion"),
        ("examples/kubernetes/smallest.yaml", f"version: {VERSION}", f"version: {OTHER}", OTHER),
        ("docs/container.md", f"podkeeper:{VERSION}", f"podkeeper:{OTHER}", OTHER),
        ("docs/bookiejob.md", f"podkeeper:{VERSION}-spark", f"podkeeper:{OTHER}-spark", OTHER),
        ("Dockerfile", "ARG VERSION=unknown", f"ARG VERSION={VERSION}", "Dockerfile:"),
        ("docs/container.md", f"podkeeper:{VERSION}", f"podkeeper-other:{VERSION}", "podkeeper-other"),
        (
            "charts/podkeeper-operator/values.yaml",
            "  repository: podkeeper\n",
            "  repository: pod\n",
            "image.repository",
        ),
        ("charts/podkeeper-cluster/values.yaml", "imageRepository: podkeeper", "imageRepository: p", "imageRepository"),
        ("charts/podkeeper-operator/files/crds/bookietasks.podkeeper.dev.yaml", "kind:", "kinds:", "make docs"),
        ("examples/kubernetes/smallest.yaml", "podkeeper.dev/v1alpha1", "podkeeper.dev/v1beta7", "v1beta7"),
        (
            "charts/podkeeper-operator/Chart.yaml",
            "name: bookietasks.podkeeper.dev",
            "name: tasks",
            "artifacthub.io/crds",
        ),
        ("docs/client.md", "podkeeper", "podkeeper[nonsense]", "nonsense"),
        ("charts/podkeeper-cluster/values.yaml", "github.io/podkeeper/", "github.io/else/", "mkdocs.yml"),
    ],
)
def test_a_difference_is_named_with_its_place(
    checkout: Path, broken: Broken, path: str, before: str, after: str, named: str
) -> None:
    with broken(path, before, after):
        faults = check_checkout(checkout)
    assert faults
    assert all(fault.startswith(path) or "artifacthub.io/crds" in fault for fault in faults)
    assert any(named in fault for fault in faults)
    assert not any("\n" in fault for fault in faults)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("+thing.nonsense.md", "It does.", "KIND"),
        ("thing.md", "It does.", "KIND"),
        ("+thing.new.md", "", "empty"),
        ("+thing.new.md", "word " * 100, "characters"),
    ],
)
def test_a_fragment_has_a_kind_and_a_short_text(checkout: Path, name: str, text: str, named: str) -> None:
    fragment = checkout / "changes" / name
    fragment.write_text(text, encoding="utf-8")
    try:
        (fault,) = check_checkout(checkout)
    finally:
        fragment.unlink()
    assert fault.startswith(f"changes/{name}: ")
    assert named in fault


def test_fragments_become_a_section_of_the_changelog(checkout: Path) -> None:
    towncrier = Path(sys.executable).with_name("towncrier")
    command = [towncrier, "build", "--draft", "--version", VERSION]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"## {VERSION} (")
    for path in (checkout / "changes").glob("+*.md"):
        assert path.read_text().split("\n")[0] in done.stdout


def test_the_section_of_a_version_is_what_its_release_says(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changes\n\n## 1.2.0 (2026-01-01)\n\n### New\n\n- It does.\n\n## 1.1.0\n\n- x\n"
    )
    assert section(tmp_path, "1.2.0") == "### New\n\n- It does."
    with pytest.raises(ReleaseError):
        section(tmp_path, "1.3.0")


def test_a_new_version_is_written_wherever_it_is_repeated(checkout: Path) -> None:
    written = write_version(checkout, VERSION, OTHER)
    try:
        assert check_checkout(checkout) == []
        assert {"pyproject.toml", "charts/podkeeper-cluster/Chart.yaml", "docs/container.md"} <= set(written)
    finally:
        assert write_version(checkout, OTHER, VERSION) == written
