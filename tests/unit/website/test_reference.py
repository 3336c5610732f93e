"""Pages that are made of code are as it is now, and what their makers have by hand is still true."""

from __future__ import annotations

import json
import re

import pytest

from bookie_pod.cli.shell import REFUSED, TRANSLATIONS
from tests.docs.pages import commands
from tests.support.chart_files import ROOT
from tests.support.command_lines import resolve
from website.pages.metrics import groups
from website.reference import PAGES

GOLDEN = ROOT / "tests" / "golden" / "metrics-db-ledger-storage.json"
SOURCES = "\n".join(path.read_text() for path in (ROOT / "bookie_pod").rglob("*.py"))


@pytest.mark.parametrize("path", PAGES)
def test_page_is_not_stale(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == PAGES[path](), "run: make docs"


def test_apaches_page_has_each_command_of_its_shell_and_names_only_commands_that_exist() -> None:
    page = ROOT / "docs" / "reference" / "apache.md"
    rows = set(re.findall(r"^\| `([\w-]+)` \|", page.read_text().partition("## bkctl")[0], re.MULTILINE))
    assert rows == {*TRANSLATIONS, *REFUSED, "help"} - {"expandstorage", "flip-bookie-id"}
    assert len(rows) == 48
    for line in commands(page):
        resolve(line)


def test_metrics_without_the_mark_own_are_apaches() -> None:
    theirs = {each["name"] for each in json.loads(GOLDEN.read_text())}
    internals = "".join(page.read_text() for page in (ROOT / "docs" / "internals").glob("*.md"))
    for group in groups():
        for metric in group.metrics:
            name = metric.name.removeprefix("scrubber_")
            short = _short(name)
            known = name in theirs or short.replace("PATH", "<path>") in internals
            if not metric.own:
                assert known or short.startswith(("ledger_dir_", "entry_log_usage")), metric.name
            else:
                assert name not in theirs, metric.name


def test_every_metric_is_made_somewhere() -> None:
    for group in groups():
        for metric in group.metrics:
            short = re.sub(r"(_hist|_MAX|_PATH_usage|_le_10|_(threads|max_queue_size))$", "", _short(metric.name))
            assert short.removeprefix("READ_ENTRY_").lower() in SOURCES.lower(), metric.name


def _short(name: str) -> str:
    return re.sub(
        r"^(bookie_(journal|gateway|audit)|bookkeeper_server|bookie|auditor|autorecovery|replication_worker|scrubber"
        r"|index_rebuild|process)_(ledger_|index_|journal_)?",
        "",
        name,
    )
