"""The wheel and the source distribution: built as a release builds them, and each fault of their metadata told."""

from __future__ import annotations

from pathlib import Path

import pytest

from release.building import build_distributions
from release.checking import check_distributions
from release.distributions import metadata_faults
from release.facts import ROOT, Made, project, version_of
from release.staging import stage, urls
from tests.unit.release.conftest import ADDRESS

ABOUT = project(ROOT)


def metadata(made: Made, **other: str) -> str:
    fields = [
        ("Name", "podkeeper"),
        ("Version", made.version),
        ("Summary", ABOUT["description"]),
        ("License-Expression", ABOUT["license"]),
        ("Requires-Python", ABOUT["requires-python"]),
        ("Keywords", ",".join(ABOUT["keywords"])),
        ("Description-Content-Type", "text/markdown"),
        *(("Classifier", each) for each in ABOUT["classifiers"]),
        *(("Project-URL", f"{name}, {url}") for name, url in urls(ADDRESS, made.version).items()),
        *(("Provides-Extra", each) for each in ABOUT["optional-dependencies"]),
    ]
    head = "".join(f"{name}: {other.get(name.replace('-', '_'), value)}\n" for name, value in fields)
    return f"{head}\n{other.get('description', '# Podkeeper')}\n"


@pytest.fixture
def nothing(tmp_path: Path) -> Made:
    """A release of which no file was written."""
    return Made(tmp_path, ADDRESS, version_of(ROOT))


def test_complete_metadata_has_no_fault(nothing: Made) -> None:
    assert list(metadata_faults(ROOT, nothing, metadata(nothing), "w")) == []


@pytest.mark.parametrize(
    "field",
    ["Name", "Version", "Summary", "License-Expression", "Requires-Python", "Keywords", "Description-Content-Type"],
)
def test_a_field_that_differs_is_named(nothing: Made, field: str) -> None:
    text = metadata(nothing, **{field.replace("-", "_"): "else"})
    (fault,) = metadata_faults(ROOT, nothing, text, "w")
    assert fault.startswith(f"w: {field} ")


@pytest.mark.parametrize(("field", "named"), [("Classifier", "classifiers"), ("Provides-Extra", "extras")])
def test_lists_that_differ_are_named(nothing: Made, field: str, named: str) -> None:
    (fault,) = metadata_faults(ROOT, nothing, metadata(nothing, **{field.replace("-", "_"): "else"}), "w")
    assert named in fault


def test_each_address_that_differs_is_named(nothing: Made) -> None:
    faults = list(metadata_faults(ROOT, nothing, metadata(nothing, Project_URL="Homepage, http://else"), "w"))
    assert len(faults) == len(urls(ADDRESS, nothing.version))


@pytest.mark.parametrize("description", ["", "see [docs](docs/client.md)"])
def test_a_description_that_an_index_cannot_show_is_told(nothing: Made, description: str) -> None:
    (fault,) = metadata_faults(ROOT, nothing, metadata(nothing, description=description), "w")
    assert "long description" in fault


def test_a_distribution_that_was_not_built_is_told(nothing: Made) -> None:
    (fault,) = check_distributions(ROOT, nothing)
    assert fault.startswith(nothing.wheel.name)


def test_both_archives_are_complete(nothing: Made, tmp_path: Path) -> None:
    """The source distribution has all that git has: tests, docs, charts and definitions too."""
    source = tmp_path / "source"
    stage(ROOT, source, ADDRESS)
    build_distributions(source, nothing.directory)
    assert list(check_distributions(ROOT, nothing)) == []
