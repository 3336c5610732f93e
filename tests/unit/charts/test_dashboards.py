"""Every dashboard: JSON that Grafana imports, panels that do not overlap, expressions that parse."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.chart_files import dashboard, dashboard_files, metrics, queries

each_board = pytest.mark.parametrize("path", dashboard_files(), ids=lambda path: path.stem)


def test_what_there_is():
    assert {path.stem for path in dashboard_files()} == {"cluster", "bookie", "operator"}


@each_board
def test_panels_have_ids_titles_and_places_of_their_own(path: Path):
    panels = dashboard(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = set(
            itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
        )
        assert not cells & taken, panel["title"]
        taken |= cells


@each_board
def test_every_panel_asks_the_data_source_that_is_chosen(path: Path):
    board = dashboard(path)
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[0] == "datasource"
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"], panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@each_board
def test_identifier_is_what_the_template_replaces(path: Path):
    text = path.read_text()
    assert text.count(f'"uid": "podkeeper-{path.stem}"') == 1
    assert text.count('"title": "Podkeeper: ') == 1


def test_every_expression_parses_and_asks_for_something():
    found = list(queries())
    assert len(found) > 100
    assert all(metrics(query) for query in found)
