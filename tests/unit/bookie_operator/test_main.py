"""The command exists, knows its version, and does not pretend to be an operator."""

from __future__ import annotations

import pytest

from bookie_operator.main import main


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bookie-operator", "--version"])
    main()
    assert capsys.readouterr().out.startswith("bookie-operator 0.")


def test_it_says_that_there_is_no_operator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bookie-operator"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
