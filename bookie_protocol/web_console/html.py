"""HTML that is escaped by construction: text becomes HTML only by the tags here, and they escape it.

    div("a <b> from a stranger", a("more", href="/ui/bookie?id=" + quote(name)), class_="card")

Invariants
- `Html` is made by a `Tag` and by `Tag.styled`, which takes files of this package; by nothing else.
- Attributes cannot hold script or style: their names are of a fixed list, and a link is a path of this site, a query or
  an address with http or https.
- One text has at most `MOST` characters.
- Characters that no page needs, and with which a name could pretend to be another one, are shown as a replacement mark:
  control characters and those that change the direction of writing.

Pure; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

Attribute: TypeAlias = str | int | float | bool | None
_HIDDEN: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
_REPLACED: Final = "\ufffd"
MOST: Final = 1000
"""Characters of one text, in an element or an attribute: what strangers wrote may be megabytes."""
MOST_LINK: Final = 4000
"""Characters of an address: a longer one is no link, as its beginning leads elsewhere."""
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_LINK: Final = re.compile(r"(?:https?://[^/\\\s]+(?:/.*)?|/(?![/\\]).*|\?.*|#.*)", re.DOTALL)
_LINKS: Final = frozenset({"href", "action"})
_ATTRIBUTES: Final = _LINKS | {
    "class",
    "colspan",
    "content",
    "datetime",
    "for",
    "height",
    "hidden",
    "id",
    "inputmode",
    "lang",
    "maxlength",
    "method",
    "name",
    "open",
    "placeholder",
    "preserveAspectRatio",
    "rel",
    "role",
    "rx",
    "scope",
    "selected",
    "tabindex",
    "title",
    "type",
    "value",
    "viewBox",
    "width",
    "x",
    "y",
}
_PREFIXES: Final = ("aria-", "data-")
_VOID: Final = frozenset({"br", "hr", "input", "link", "meta"})
_OWN: Final = object()
"""Shown by the tags of this module to the constructor of `Html`."""


class Html:
    """A piece of HTML in which everything is escaped. Tags make it."""

    __slots__ = ("_text",)

    def __init__(self, text: str, maker: object) -> None:
        """`maker`: the key that only this module has."""
        if maker is not _OWN:
            raise TypeError("HTML is made by the tags of bookie_protocol.web_console.html")
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Html) -> Html:
        return Html(self._text + other._text, _OWN)


Child: TypeAlias = Html | str | int | float | Iterable["Child"] | None


class Tag:
    """An element of HTML. Calling it makes one."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *children: Child, **attributes: Attribute) -> Html:
        """The element. None is left out. Names of attributes: `class_`, `aria_label`, `data_key`."""
        if self._name in ("script", "style"):
            raise TypeError(f"the text of <{self._name}> is a file of this package")
        begin = f"<{self._name}{_attributes(attributes)}>"
        if self._name in _VOID:
            return Html(begin, _OWN)
        return Html(f"{begin}{text(*children)}</{self._name}>", _OWN)

    def of_file(self, name: str) -> Html:
        """An element `script` or `style` with a file of this package."""
        return Html(f"<{self._name}>{asset(name)}</{self._name}>", _OWN)


def text(*children: Child) -> Html:
    """Several children, one behind the other, without an element round them."""
    return Html("".join(_texts(children)), _OWN)


def document(*children: Child) -> str:
    """A whole page."""
    return f"<!doctype html>\n{text(*children)}"


@cache
def asset(name: str) -> str:
    """The text of a file of this package."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def escaped(value: str, most: int = MOST) -> str:
    """The text as HTML shows it, in an element or in an attribute; the beginning of one that is longer than `most`."""
    if len(value) > most:
        value = f"{value[: most - 1]}…"
    return _HIDDEN.sub(_REPLACED, value).translate(_ESCAPES)


def _texts(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            yield str(child)
        elif isinstance(child, str):
            yield escaped(child)
        elif isinstance(child, int | float):
            yield str(child)
        else:
            yield from _texts(child)


def _attributes(attributes: dict[str, Attribute]) -> str:
    found = []
    for key, value in attributes.items():
        name = key.rstrip("_").replace("_", "-")
        if name not in _ATTRIBUTES and not name.startswith(_PREFIXES):
            raise TypeError(f"pages have no attribute {name}")
        if value is None or value is False:
            continue
        if name in _LINKS and (len(str(value)) > MOST_LINK or _LINK.fullmatch(str(value)) is None):
            continue  # a stranger's address with another scheme is no link
        shown = "" if value is True else escaped(str(value), MOST_LINK if name in _LINKS else MOST)
        found.append(f" {name}" if value is True else f' {name}="{shown}"')
    return "".join(found)


a = Tag("a")
bdi = Tag("bdi")
body = Tag("body")
button = Tag("button")
code = Tag("code")
dd = Tag("dd")
details = Tag("details")
dialog = Tag("dialog")
div = Tag("div")
dl = Tag("dl")
dt = Tag("dt")
form = Tag("form")
h1 = Tag("h1")
h2 = Tag("h2")
h3 = Tag("h3")
head = Tag("head")
header = Tag("header")
html = Tag("html")
input_ = Tag("input")
label = Tag("label")
kbd = Tag("kbd")
li = Tag("li")
main = Tag("main")
meta = Tag("meta")
nav = Tag("nav")
option = Tag("option")
p = Tag("p")
rect = Tag("rect")
script = Tag("script")
section = Tag("section")
select = Tag("select")
span = Tag("span")
strong = Tag("strong")
style = Tag("style")
summary = Tag("summary")
svg = Tag("svg")
table = Tag("table")
tbody = Tag("tbody")
td = Tag("td")
th = Tag("th")
thead = Tag("thead")
title = Tag("title")
tr = Tag("tr")
ul = Tag("ul")
