"""The site: its pages are those of `docs/`, the copy that it is built from has no link that leaves it, and the links in
alerts lead to its runbooks. `make site` checks the rest: links, anchors, names of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.chart_files import CHARTS, PLACEHOLDERS, ROOT, alert, alert_files
from website.stage import DOCS, REPOSITORY, staged


class _Settings(yaml.SafeLoader):
    """Reads mkdocs.yml, where some values name functions of Python."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
SITE: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Settings)


def pages(nav: list[Any]) -> Iterator[str]:
    for each in nav:
        if isinstance(each, str):
            yield each
        else:
            for below in each.values():
                yield from pages([below] if isinstance(below, str) else below)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(pages(SITE["nav"])) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_links_in_alerts_lead_to_runbooks_of_the_latest_version() -> None:
    places = {yaml.safe_load(path.read_text())["prometheusRule"]["runbookUrl"] for path in CHARTS.glob("*/values.yaml")}
    assert (
        places
        == {PLACEHOLDERS["__RUNBOOKS__"]}
        == {f"{SITE['site_url']}{SITE['extra']['version']['default']}/runbooks"}
    )
    for path in alert_files():
        page = alert(path)["annotations"]["runbook_url"].removeprefix(PLACEHOLDERS["__RUNBOOKS__"])
        assert page == f"/{path.stem}/"
        assert f"runbooks/{path.stem}.md" in set(pages(SITE["nav"]))


def test_links_that_leave_docs_are_addresses_of_the_repository() -> None:
    assert SITE["repo_url"] == REPOSITORY
    kept = "[b](adr/README.md) [c](https://x.org/y)\n```\n[e](../f)\n```\n"
    assert staged(DOCS / "page.md", f"[a](../SECURITY.md#x) [d](../docker) {kept}") == (
        f"[a]({REPOSITORY}/blob/main/SECURITY.md#x) [d]({REPOSITORY}/tree/main/docker) {kept}"
    )
    for page in DOCS.rglob("*.md"):
        for path in re.findall(r"\]\(((?:\.\./)+[^)#]+)", staged(page, page.read_text())):
            assert (page.parent / path).resolve().is_relative_to(DOCS), page
