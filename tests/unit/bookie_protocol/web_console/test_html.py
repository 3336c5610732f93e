"""HTML is escaped by construction."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from bookie_protocol.web_console import frame, html
from bookie_protocol.web_console.html import Html, a, code, div, text
from bookie_protocol.web_console.parts import MOST_ROWS, rows

HOSTILE = "\"'><script>alert(1)</script>&amp;"


def test_text_and_attributes_are_escaped() -> None:
    made = str(div(HOSTILE, title=HOSTILE))
    escaped = "&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;"
    assert made == f'<div title="{escaped}">{escaped}</div>'


def test_a_text_is_cut_and_no_link_is_made_of_a_part_of_one() -> None:
    made = str(a("<" * 5000, href="/" * 5000, title="<" * 5000))
    assert made.count("&lt;") == 2 * (html.MOST - 1)
    assert "href" not in made


def test_a_table_makes_no_line_that_it_does_not_show() -> None:
    lines: list[int] = []

    def line(number: int) -> list[str]:
        lines.append(number)
        return [str(number)]

    made = str(rows(("Number",), range(100_000), line, ""))
    assert len(lines) == MOST_ROWS == made.count("<td>")
    assert f"{100_000 - MOST_ROWS:,} more" in made


def test_html_in_html_is_not_escaped_twice_and_none_is_left_out() -> None:
    assert str(div(code("<"), None, [1, [2.5, "&"]], text(a("x", href="/ui")))) == (
        '<div><code>&lt;</code>12.5&amp;<a href="/ui">x</a></div>'
    )


def test_no_text_becomes_html_otherwise() -> None:
    with pytest.raises(TypeError):
        Html("<b>", object())
    with pytest.raises(TypeError):
        html.script("alert(1)")
    with pytest.raises(TypeError):
        html.style("*{}")


@pytest.mark.parametrize("name", ["onclick", "style", "srcdoc", "src", "formaction"])
def test_an_attribute_that_could_hold_script_or_style_does_not_exist(name: str) -> None:
    with pytest.raises(TypeError):
        div("x", **{name: "x"})


@pytest.mark.parametrize(
    ("address", "is_link"),
    [
        ("/ui/bookies", True),
        ("?first=5", True),
        ("#content", True),
        ("http://bookie-0:8000/ui", True),
        ("https://bookie-0:8000/ui", True),
        ("//elsewhere.example/", False),
        ("/\\elsewhere.example/", False),
        ("javascript:alert(1)", False),
        ("JaVaScRiPt:alert(1)", False),
        (" javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("http:javascript", False),
    ],
)
def test_only_paths_of_the_site_and_web_addresses_are_links(address: str, is_link: bool) -> None:
    assert ("href=" in str(a("x", href=address))) is is_link


def test_characters_with_which_a_name_could_pretend_are_shown() -> None:
    assert str(code("bookie\u202e\u0000\u200b\ud800\n1")) == "<code>bookie\ufffd\ufffd\ufffd\ufffd\n1</code>"


def test_the_policy_names_script_and_style_of_every_page_and_nothing_else() -> None:
    made = frame.page(frame.Place("/ui", "bookie", ""), "Overview", sections=frame.SECTIONS)
    policy = frame.headers()["Content-Security-Policy"]
    for element in ("script", "style"):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", made, re.DOTALL)
        hashed = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{hashed}'" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not {"unsafe-inline", "unsafe-eval", "unsafe-hashes", "http:", "https:", "*"} & set(policy.split())
