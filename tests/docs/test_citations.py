"""Every citation of a page about the reference implementation resolves: page and section are in `docs/internals`."""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {
    "wire protocol": "wire-protocol",
    "on-disk formats": "on-disk-formats",
    "client protocol": "client-protocol",
    "metadata layout": "metadata-layout",
    "metadata on etcd": "metadata-on-etcd",
    "auto-recovery": "auto-recovery",
    "bookie behaviour": "bookie-behaviour",
    "Spark notes": "spark",
}
SECTION: Final = r"\d+(?:\.\d+)*"
LIST: Final = rf"{SECTION}(?: \([^)]*\))?(?:(?:, | and | to |, and ){SECTION}(?: \([^)]*\))?)*"
CITATION: Final = re.compile(
    rf"(?:(?P<page>{'|'.join(PAGES)})(?: page)?|docs/internals/(?P<file>[\w-]+)\.md),? sections? (?P<sections>{LIST})"
)
ANY: Final = re.compile(rf"(?:reference (?P<what>[\w -]+?)|docs/internals/(?P<file>[\w-]+)\.md),? sections? {SECTION}")
SOURCE: Final = re.compile(rf"\bSources?: [^.]*?\breference (?:{'|'.join(PAGES)})")
"""A source that is named by its subject instead of its path."""
PATH: Final = re.compile(r"`(?:\.{0,2}/)*((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|proto|yaml))(?:::?[\w:.\[\]-]+)?`")
"""A file of this repository, by its whole path or by the end of it."""


def sections(page: str) -> set[str]:
    text = (ROOT / "docs" / "internals" / f"{page}.md").read_text()
    return set(re.findall(rf"^##+ ({SECTION})\.? ", text, re.MULTILINE))


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.proto", "*.java", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / name for name in listed if (ROOT / name).exists() and not name.startswith("docs/internals/")]


def flat(path: Path) -> str:
    """The text without its line breaks, and without what begins the lines of a comment."""
    return re.sub(r"\s*\n\s*(?:#|//|\*)?\s*", " ", path.read_text())


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): flat(path) for path in sources() if path != Path(__file__)}


def test_every_cited_section_exists(texts: dict[str, str]) -> None:
    known = {page: sections(name) for page, name in PAGES.items()} | {name: sections(name) for name in PAGES.values()}
    cited = [
        (where, citation["page"] or citation["file"], section)
        for where, text in texts.items()
        for citation in CITATION.finditer(text)
        for section in re.findall(SECTION, re.sub(r"\([^)]*\)", "", citation["sections"]))
    ]
    assert len(cited) > 400
    assert not [(where, page, section) for where, page, section in cited if section not in known.get(page, ())]


def test_nothing_else_is_cited_by_section(texts: dict[str, str]) -> None:
    named = [(where, cited["what"] or cited["file"]) for where, text in texts.items() for cited in ANY.finditer(text)]
    assert named
    known = {*PAGES, *PAGES.values()}
    assert not [(where, what) for where, what in named if what.removesuffix(" page") not in known]


def test_sources_are_named_by_path(texts: dict[str, str]) -> None:
    assert not [(where, found[0]) for where, text in texts.items() for found in SOURCE.finditer(text)]


def test_every_path_in_a_text_is_a_file(texts: dict[str, str]) -> None:
    """Whole paths, and short ones that are the end of a file's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ends = {"/".join(parts[start:]) for parts in (name.split("/") for name in listed) for start in range(len(parts))}
    named = [(where, path[1]) for where, text in texts.items() for path in PATH.finditer(text)]
    assert len(named) > 150
    assert not [(where, path) for where, path in named if path not in ends]


def test_a_page_keeps_its_links(texts: dict[str, str]) -> None:
    """Pages name each other by file; sections of their own by the sign."""
    pages = {path.name: path.read_text() for path in (ROOT / "docs" / "internals").glob("*.md")}
    assert set(pages) >= {f"{name}.md" for name in PAGES.values()}
    dangling = [
        (name, cited)
        for name, text in pages.items()
        for cited in re.findall(r"\b([a-z-]+\.md)\b", text)
        if cited not in pages and not (ROOT / "docs" / cited).exists()
    ]
    own = [
        (name, section)
        for name, text in pages.items()
        for section in re.findall(rf"(?<![\w-]\.md )§({SECTION})", text)
        if section not in sections(name.removesuffix(".md"))
    ]
    assert (dangling, own) == ([], [])
