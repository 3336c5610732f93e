from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.node.identity.cookies import (
    BookieDirectories,
    Cookie,
    decode_directories,
    encode_directories,
    format_cookie,
    parse_cookie,
)
from bookie_protocol.errors import InvalidCookie

GOLDEN = Path(__file__).parents[4] / "golden"
EXAMPLE = b"""5
bookieHost: "10.0.0.1:3181"
journalDir: "/data/j1,/data/j2"
ledgerDirs: "2\\t/data/l1\\t/data/l2"
instanceId: "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
"""


def golden_cookies() -> list[bytes]:
    nodes = json.loads((GOLDEN / "znodes-four-bookies.json").read_text())["znodes"]
    stored = [bytes.fromhex(node["dataHex"]) for node in nodes if "/cookies/" in node["path"]]
    return stored + [path.read_bytes() for path in sorted(GOLDEN.glob("disk-*/VERSION"))]


def test_golden_cookies_come_back_byte_for_byte() -> None:
    cookies = golden_cookies()
    assert len(cookies) == 7
    for data in cookies:
        cookie = parse_cookie(data, "golden")
        assert cookie.layout_version == 5
        assert len(decode_directories(cookie.ledger_dirs, "golden")) == 1
        assert format_cookie(cookie) == data


def test_worked_example() -> None:
    directories = BookieDirectories(("/data/j1", "/data/j2"), ("/data/l1", "/data/l2"))
    cookie = Cookie.expected("10.0.0.1:3181", directories, "3f2504e0-4f89-11d3-9a0c-0305e82c3301")
    assert format_cookie(cookie) == EXAMPLE
    assert parse_cookie(EXAMPLE, "x") == cookie
    assert directories.current_folders() == (
        "/data/j1/current",
        "/data/j2/current",
        "/data/l1/current",
        "/data/l2/current",
    )


def test_a_shared_directory_is_looked_at_once() -> None:
    assert BookieDirectories(("/d",), ("/d",), ("/d", "/i")).current_folders() == ("/d/current", "/i/current")


def test_older_and_newer_layouts() -> None:
    third = parse_cookie(b"3\n10.0.0.1:3181\n/data/j\n2\t/data/l1\t/data/l2\n", "x")
    assert third == Cookie("10.0.0.1:3181", "/data/j", "2\t/data/l1\t/data/l2", layout_version=3)
    assert parse_cookie(format_cookie(third), "x").layout_version == 5  # a rewrite can be read back
    fourth = parse_cookie(EXAMPLE.replace(b"5\n", b"4\n", 1), "x")
    assert (fourth.layout_version, fourth.index_dirs) == (4, None)
    assert fourth.effective_index_dirs == fourth.ledger_dirs
    newer = parse_cookie(EXAMPLE.replace(b"5\n", b"6\n", 1) + b'somethingNew: "x"\n', "x")
    assert newer.layout_version == 6


def test_empty_means_absent() -> None:
    cookie = parse_cookie(b'5\nbookieHost:"b" journalDir:"/j" ledgerDirs:"1\\t/l" instanceId:"" indexDirs:""', "x")
    assert (cookie.instance_id, cookie.index_dirs) == (None, None)
    assert Cookie.expected("b", BookieDirectories(("/j",), ("/l",)), "").instance_id is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a layout"),
        (b"five\nx", "a layout"),
        (b"-5\n", "a layout"),
        (b"2\nold", "version 2"),
        (b"3\nhost\n/journal", "lines"),
        (b"3\n\xff\n/journal\n1\t/l", "decode"),
        (b'5\nbookieHost: "b"', "required"),
        (b"5\nbookieHost: b", "protobuf"),
        (b"5\n\xff\xfe", "protobuf"),
    ],
)
def test_damage_names_the_file(data: bytes, message: str) -> None:
    with pytest.raises(InvalidCookie, match=message) as caught:
        parse_cookie(data, "/data/l1/current/VERSION")
    assert "/data/l1/current/VERSION" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_list_must_fit_its_count() -> None:
    assert decode_directories(encode_directories(("/a", "/b")), "x") == ("/a", "/b")
    for text in ("", "2\t/a", "x\t/a", "1\t/a\t/b"):
        with pytest.raises(InvalidCookie, match="count"):
            decode_directories(text, "x")


# real names hold neither TAB nor NUL, and only what can be encoded
names = st.text(st.characters(exclude_characters="\t\0", exclude_categories=["Cs"]), min_size=1, max_size=12)
directory_lists = st.lists(names, min_size=1, max_size=3).map(tuple)
cookies = st.builds(
    Cookie.expected,
    names,
    st.builds(BookieDirectories, directory_lists, directory_lists, st.none() | directory_lists),
    st.none() | names,
)


@given(cookies)
def test_round_trip(cookie: Cookie) -> None:
    data = format_cookie(cookie)
    assert data.isascii()
    assert parse_cookie(data, "x") == cookie


@given(st.sampled_from([EXAMPLE, b"3\nhost\n/j\n1\t/l\n", *golden_cookies()]), st.data())
def test_mutations_are_read_or_refused(seed: bytes, data: st.DataObject) -> None:
    mutated = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 5))):
        where = data.draw(st.integers(0, len(mutated)))
        mutated[where : where + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        cookie = parse_cookie(bytes(mutated), "x")
    except InvalidCookie:
        return
    again = parse_cookie(format_cookie(cookie), "x")
    assert (again.bookie_id, again.ledger_dirs) == (cookie.bookie_id, cookie.ledger_dirs)
