"""The notebook in `examples/` does what it says: its cells run in order, against real bookies."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart_files import ROOT

NOTEBOOK = ROOT / "examples" / "ledgers.ipynb"


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    return dict(json.loads(NOTEBOOK.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_its_cells(
    notebook: dict[str, Any], spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("BK_metadataServiceUri", uri)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}:{cell['id']}", "exec"), names)
    averages = [(row.sensor, row["avg(value)"]) for row in names["averages"].collect()]
    assert averages == [(sensor, 4997.5 + sensor) for sensor in range(5)]
    assert names["read"](stream="notebook-readings").count() == 10_000, "written twice, counted once"
    values = [bytes(row.value) for row in names["read"](stream="notebook-alarms").collect()]
    alarms = sorted(json.loads(value)["value"] for value in values)
    assert alarms == list(range(0, 10_000, 100))
    told = capsys.readouterr().out
    assert "10000 rows read, 100 alarms\n0 rows read, 100 alarms\n" in told


def test_it_is_kept_without_outputs(notebook: dict[str, Any]) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
