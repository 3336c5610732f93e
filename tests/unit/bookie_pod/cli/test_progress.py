"""Bars on a terminal."""

from __future__ import annotations

import pytest

from bookie_pod.cli.progress import Bar, DirectoryBars, Reached


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def test_a_bar_for_each_directory_whatever_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    with DirectoryBars() as bars:
        bars.show([])
        bars.show([Reached("/data[/0]: reading", 3, 10), Reached("/data[b]: waiting", 0, 0)])
        bars.show([Reached("/data[/0]: reading", 4, 10)])
    shown = capsys.readouterr().err
    for text in ("/data[/0]: reading", "4/10", "/data[b]: waiting", "0/?"):
        assert text in shown


def test_the_name_of_a_directory_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with DirectoryBars() as bars:
        bars.show([Reached("/data\x1b]0;title\x07: reading", 3, 10)])
    shown = capsys.readouterr().err
    assert ("]0;title" in shown, "\x1b]" in shown, "\x07" in shown) == (True, False, False)


def test_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    with DirectoryBars(in_bytes=True) as bars:
        bars.show([Reached("/data: copying", 3_000_000, 9_000_000)])
    with Bar("reading [/x]", 10_000_000, in_bytes=True) as bar:
        bar.advance(4_000_000)
    shown = capsys.readouterr().err
    for text in ("3.0/9.0 MB", "reading [/x]", "4.0/10.0 MB"):
        assert text in shown


def test_elsewhere_nothing_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR")
    with DirectoryBars() as bars:
        bars.show([Reached("/data: reading", 3, 10)])
    assert capsys.readouterr().err == ""
