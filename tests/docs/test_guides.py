"""The short guides: each of their commands that needs only a cluster runs, and ends with 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.examples import blocks, commands, matches
from tests.support.chart_files import ROOT

GUIDES = [ROOT / "docs" / f"{name}.md" for name in ("back-up", "replace-a-disk", "size", "tune", "upgrade")]
EXAMPLES = [(page, block) for page in GUIDES for block in blocks(page) if block.language == "console"]


def test_each_guide_has_commands():
    assert {page for page, _ in EXAMPLES} == {*GUIDES}


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=lambda each: getattr(each, "stem", getattr(each, "line", "")))
def test_commands(page: Path, block, cluster, newcomer):
    strict = newcomer.folder / "strict.sh"
    strict.write_text("set -eo pipefail\n")
    code = block.code.replace("http://127.0.0.1:8000", f"http://{cluster.http[0]}")
    ran = newcomer.run_console(code + "$ true\n", {"BK_metadataServiceUri": cluster.uri, "BASH_ENV": str(strict)})
    for command, expected, actual in ran:
        assert matches(expected, actual), f"{page.name}:{block.line}: $ {command}{actual}"
    assert len(ran) == len(commands(code)) + 1, f"{page.name}:{block.line}: $ {ran[-1][0]}{ran[-1][2]}"
