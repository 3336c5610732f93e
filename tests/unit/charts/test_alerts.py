"""Every alert: a rule that Prometheus can load, with a page for those whom it wakes."""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser
import pytest

from tests.support.chart_files import PLACEHOLDERS, RUNBOOKS, Query, alert, alert_files, metrics, parsed
from tests.support.markdown_links import broken_links

SECTIONS = ["Meaning", "Impact", "Diagnosis", "Remedy"]
_DURATION = re.compile(r"([0-9]+(ms|s|m|h|d))+")

each_alert = pytest.mark.parametrize("path", alert_files(), ids=lambda path: path.stem)


def test_there_are_alerts_of_the_cluster_and_of_the_operator():
    assert {path.parts[-3] for path in alert_files()} == {"podkeeper-cluster", "podkeeper-operator"}


@each_alert
def test_file_is_one_whole_rule_that_the_template_can_fill_in(path: Path):
    rule = alert(path)
    assert rule["alert"] == path.stem
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert _DURATION.fullmatch(rule["for"])
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"{PLACEHOLDERS['__RUNBOOKS__']}/{path.stem}/"
    query = Query(path.stem, rule["expr"])
    assert parsed(query), "it is one comparison of known metrics"
    assert metrics(query)
    assert set(re.findall(r"__[A-Z_]+__", path.read_text())) <= set(PLACEHOLDERS)


def test_a_broken_expression_is_told():
    with pytest.raises(AssertionError, match="Broken"):
        parsed(Query("Broken", "sum by (pod (up)"))


def test_metrics_of_an_expression_are_found_everywhere():
    text = 'sum(rate(a_total{x="1"}[5m])) / max_over_time(b[1h:1m]) and on () {__name__=~"c_.+"} unless d offset 1h > 2'
    assert metrics(Query("x", text)) == {"a_total", "b", "~c_.+", "d"}
    assert isinstance(promql_parser.parse("a"), promql_parser.VectorSelector)


@each_alert
def test_alert_has_its_page(path: Path):
    page = RUNBOOKS / f"{path.stem}.md"
    assert page.exists(), f"{path.stem} has no page in docs/runbooks"
    text = page.read_text()
    assert text.startswith(f"# {path.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert f"({path.stem}.md)" in (RUNBOOKS / "README.md").read_text(), "docs/runbooks/README.md does not list it"


def test_pages_have_their_alerts_and_their_links_lead_somewhere():
    pages = {page.stem: page for page in RUNBOOKS.glob("*.md")}
    assert pages.keys() == {"README", *(path.stem for path in alert_files())}
    assert {name: broken for name, page in pages.items() if (broken := broken_links(page))} == {}


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n[a](page.md#a-page) [b](#no) [c](other.md) [d](https://example.org/x)\n")
    assert broken_links(page) == ["page.md: ](#no)", "page.md: ](other.md)"]
