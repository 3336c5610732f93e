"""Charts, bundle, manifest and lists of a release: what they hold, and that a difference is told."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import bundle, plugin
from release.assembling import write_sums
from release.building import archive, members
from release.checking import check_others
from release.facts import CHARTS, ROOT, Address, Made, ReleaseError
from release.sbom import LISTS, locked
from release.staging import with_absolute_links
from tests.support.chart_files import OPERATOR
from tests.unit.release.conftest import ADDRESS

REGISTRY = "ghcr.io/some-owner/podkeeper"


def parsed(content: bytes) -> dict[str, Any]:
    return dict(yaml.safe_load(content))


def rewritten(path: Path, name: str, before: str, after: str) -> None:
    files = members(path)
    text = files[name].decode()
    assert before in text
    path.write_bytes(archive({**files, name: text.replace(before, after, 1).encode()}))


def test_a_release_agrees_with_its_checkout(source: Path, made: Made) -> None:
    assert check_others(source, made) == []


@pytest.mark.parametrize("chart", CHARTS)
def test_a_chart_names_where_it_comes_from_and_the_published_images(made: Made, chart: str) -> None:
    files = members(made.chart(chart))
    about = parsed(files[f"{chart}/Chart.yaml"])
    assert about["home"] == "https://github.com/Some-Owner/podkeeper"
    assert about["sources"][0] == about["home"]
    assert about["maintainers"][0]["url"] == about["home"]
    assert about["icon"].endswith("/charts/icon.svg")
    listed = yaml.safe_load(about["annotations"]["artifacthub.io/images"])
    assert [each["image"] for each in listed] == [f"{REGISTRY}:{made.version}", f"{REGISTRY}:{made.version}-spark"]
    readme = files[f"{chart}/README.md"].decode()
    assert f"oci://{REGISTRY}/charts/{chart} --version {made.version}" in readme
    assert "](../" not in readme


def test_links_of_a_page_lead_to_the_repository() -> None:
    page = "[a](b.md#c) ![d](../e.png) [f](https://g) [h](#i)"
    assert with_absolute_links(page, Address("o/n"), "1.2.3", Path("docs")) == (
        "[a](https://github.com/o/n/blob/v1.2.3/docs/b.md#c) "
        "![d](https://raw.githubusercontent.com/o/n/v1.2.3/e.png) [f](https://g) [h](#i)"
    )


@pytest.mark.parametrize("repository", ["", "name", "a/b/c", "https://github.com/a/b", "a b/c", "-/c", "a/b c"])
def test_an_address_is_owner_and_name(repository: str) -> None:
    with pytest.raises(ReleaseError):
        Address.parse(repository)


def test_the_bundle_has_the_definitions_and_the_rights_of_the_chart(made: Made) -> None:
    files = members(made.bundle)
    definitions = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    assert {name: files[f"manifests/{name}"] for name in definitions} == definitions
    version = parsed(files["manifests/podkeeper.clusterserviceversion.yaml"])
    install = version["spec"]["install"]["spec"]
    (everywhere,), (own,) = install["clusterPermissions"], install["permissions"]
    chart = [
        yaml.safe_load((OPERATOR / "files" / "rbac" / name).read_text())
        for name in ("clusters.yaml", "cluster-read.yaml")
    ]
    assert everywhere["rules"] == [rule for rules in chart for rule in rules]
    assert {verb for rule in own["rules"] for verb in rule["verbs"]} == {"create", "get", "update"}
    owned = version["spec"]["customresourcedefinitions"]["owned"]
    assert sorted(f"{each['name']}.yaml" for each in owned) == sorted(definitions)
    assert version["spec"]["version"] == made.version
    assert version["metadata"]["name"] == f"podkeeper.v{made.version}"
    examples = json.loads(version["metadata"]["annotations"]["alm-examples"])
    assert {each["kind"] for each in examples} == {each["kind"] for each in owned}


def test_the_deployment_of_the_bundle_is_that_of_the_chart() -> None:
    spec = bundle.deployment(ROOT, ADDRESS)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert bundle._FILLED not in str(spec)
    assert container["image"] == f"{REGISTRY}:{bundle.version_of(ROOT)}"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    assert {each["name"] for each in container["env"]} >= {"POD_NAME", "POD_NAMESPACE", "PODKEEPER_IMAGE"}
    assert "--all-namespaces" in container["args"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_manifest_of_the_plugin_names_the_archive(made: Made) -> None:
    (platform,) = parsed(made.krew.read_bytes())["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(made.plugin.read_bytes()).hexdigest()
    assert platform["uri"].endswith(f"/v{made.version}/{made.plugin.name}")
    assert {each["from"] for each in platform["files"]} == set(members(made.plugin))


def test_the_plugin_is_one_file_that_runs(made: Made) -> None:
    program = made.directory / plugin.COMMAND
    assert program.stat().st_mode & stat.S_IXUSR
    done = subprocess.run([sys.executable, "-I", program, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert made.version in done.stdout


def test_the_list_of_an_image_has_every_locked_package(made: Made) -> None:
    for image, lock in LISTS.items():
        listed = json.loads((made.directory / f"{image}-{made.version}.cdx.json").read_bytes())
        assert (listed["bomFormat"], listed["metadata"]["component"]["version"]) == ("CycloneDX", made.version)
        packages = {f"pkg:pypi/{each.name}@{each.version}" for each in locked(ROOT / lock)}
        assert len(packages) > 20
        assert {each["purl"] for each in listed["components"]} == packages | {f"pkg:pypi/podkeeper@{made.version}"}


@pytest.mark.parametrize(
    ("part", "name", "before", "after"),
    [
        ("podkeeper-operator", "podkeeper-operator/Chart.yaml", "\nversion: ", "\nversion: 9"),
        ("podkeeper-cluster", "podkeeper-cluster/Chart.yaml", "home: ", "home: x"),
        ("podkeeper-cluster", "podkeeper-cluster/Chart.yaml", "  artifacthub.io/images", "  artifacthub.io/image"),
        ("podkeeper-operator", "podkeeper-operator/values.yaml", REGISTRY, "ghcr.io/else/podkeeper"),
        ("bundle", "manifests/bookieclusters.podkeeper.dev.yaml", "v1alpha1", "v1alpha2"),
        ("bundle", "manifests/podkeeper.clusterserviceversion.yaml", "- get", "- gets"),
        ("bundle", "metadata/annotations.yaml", "alpha", "beta"),
    ],
)
def test_a_changed_part_is_told(source: Path, made: Made, part: str, name: str, before: str, after: str) -> None:
    path = made.bundle if part == "bundle" else made.chart(part)
    rewritten(path, name, before, after)
    write_sums(made)
    (fault,) = check_others(source, made)
    assert fault.startswith(f"{path.name}: ")


@pytest.mark.parametrize("field", ["version", "homepage", "uri", "sha256", "bin"])
def test_a_manifest_that_names_something_else_is_told(source: Path, made: Made, field: str) -> None:
    manifest = parsed(made.krew.read_bytes())
    place = manifest["spec"] if field in manifest["spec"] else manifest["spec"]["platforms"][0]
    place[field] = "else"
    made.krew.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    write_sums(made)
    (fault,) = check_others(source, made)
    assert fault.startswith(f"bookie.yaml: {field} ")


def test_a_file_with_another_digest_and_one_that_is_not_listed_are_told(source: Path, made: Made) -> None:
    (made.directory / plugin.COMMAND).write_bytes(b"")
    (made.directory / "more").write_bytes(b"")
    assert [fault.split(" ")[1] for fault in check_others(source, made)] == [plugin.COMMAND, "more"]
