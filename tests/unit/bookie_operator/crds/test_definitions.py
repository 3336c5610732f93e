"""The definitions in `crds/` and the reference page are what is generated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bookie_operator.crds import generate, names
from bookie_operator.crds.definitions import CLUSTER, JOB, KINDS, TASK, Kind, definition
from tests.support.structural_schemas import nodes

_LIMIT = 256 * 1024


def test_the_files_are_as_they_are_generated() -> None:
    """By the command, as people run it."""
    command = [sys.executable, "-m", "bookie_operator.crds.generate", "--check"]
    done = subprocess.run(command, cwd=generate.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stale_file_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "generated", lambda: {"crds/one.yaml": "1", "docs/bookiecluster.md": "page"})
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "docs" / "bookiecluster.md").write_text("edited by hand")
    assert generate.main(["--check"]) == 1
    assert "docs/bookiecluster.md" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_definition_fits_the_annotation_of_client_side_apply(kind: Kind) -> None:
    text = (generate.ROOT / f"crds/{kind.crd_name}.yaml").read_text()
    assert yaml.load(text, yaml.CSafeLoader) == definition(kind)
    assert "&id" not in text, "anchors"
    assert len(text) < _LIMIT / 2


def test_names_scale_and_status() -> None:
    cluster = definition(CLUSTER)
    assert cluster["metadata"]["name"] == "bookieclusters.podkeeper.dev"
    assert cluster["spec"]["names"]["shortNames"] == ["bkc"]
    assert definition(TASK)["spec"]["names"]["shortNames"] == ["bkt"]
    assert definition(JOB)["spec"]["names"]["shortNames"] == ["bkj"]
    (version,) = cluster["spec"]["versions"]
    assert version["name"] == names.VERSION
    assert "status" in version["subresources"]
    scale = version["subresources"]["scale"]
    known = {f".{path}" for path, _ in nodes(version["schema"]["openAPIV3Schema"])}
    assert set(scale.values()) <= known


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_columns_show_fields_that_there_are(kind: Kind) -> None:
    schema = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    known = {f".{path}" for path, _ in nodes(schema)}
    for column in kind.columns:
        path = column["jsonPath"].replace('[?(@.type=="Ready")]', "[]")
        assert path in known or path == ".metadata.creationTimestamp", column["name"]


def test_maps_and_lists_of_the_status_can_be_emptied() -> None:
    """The API server leaves null where an apply takes the last key of a map away that is not one value."""
    (version,) = definition(CLUSTER)["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    maps = [each for _, each in nodes(status) if "additionalProperties" in each]
    assert maps
    assert all(each["x-kubernetes-map-type"] == "atomic" for each in maps)
    assert status["properties"]["bookies"]["x-kubernetes-list-type"] == "atomic"
