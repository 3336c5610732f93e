"""Which cookies may be stamped over."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bookie_pod.node.identity.cookie_check import DirectoryState, StoredCookie
from bookie_pod.node.identity.cookies import BookieDirectories, Cookie
from bookie_pod.node.integrity.lost_cookies import lost
from bookie_protocol.errors import InvalidCookie
from bookie_protocol.versioned import Identity

DIRECTORIES = BookieDirectories(("/j",), ("/l1", "/l2"))
EXPECTED = Cookie.expected("b:1", DIRECTORIES, "cluster")
STORED = [StoredCookie("b:1", EXPECTED, Identity(3, 1))]
FOLDERS = DIRECTORIES.current_folders()


@pytest.mark.parametrize("stamp", [False, True])
@pytest.mark.parametrize("have", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("data", [False, True])
def test_missing_cookies(stamp: bool, have: tuple[bool, ...], data: bool) -> None:
    states = [DirectoryState(path, EXPECTED if has else None, data) for path, has in zip(FOLDERS, have, strict=True)]
    missing = [path for path, has in zip(FOLDERS, have, strict=True) if not has]
    if not missing:
        assert lost(EXPECTED, STORED, states, stamp=stamp) is None
    elif stamp:
        assert lost(EXPECTED, STORED, states, stamp=stamp) == missing
    else:
        with pytest.raises(InvalidCookie, match=f"{missing[0]} .*dataIntegrityStampMissingCookies=true"):
            lost(EXPECTED, STORED, states, stamp=stamp)


def test_other_directories_may_be_stamped_over() -> None:
    other = replace(EXPECTED, ledger_dirs="1\t/l1")
    states = [DirectoryState(path, EXPECTED, True) for path in FOLDERS]
    assert lost(EXPECTED, [StoredCookie("b:1", other, Identity(1, 1))], states, stamp=True) == []
    states[1] = DirectoryState(FOLDERS[1], other, True)
    assert lost(EXPECTED, STORED, states, stamp=True) == [FOLDERS[1]]


@pytest.mark.parametrize("change", [{"bookie_id": "other:1"}, {"instance_id": "another"}, {"instance_id": None}])
@pytest.mark.parametrize("place", ["stored", "directory"])
def test_what_belongs_to_others_never_is(change: dict[str, str], place: str) -> None:
    other = replace(EXPECTED, **change)  # type: ignore[arg-type]
    states = [DirectoryState(path, None, False) for path in FOLDERS]
    stored = STORED
    if place == "stored":
        stored = [StoredCookie("b:1", other, Identity(1, 1))]
    else:
        states[2] = DirectoryState(FOLDERS[2], other, True)
    with pytest.raises(InvalidCookie, match="belongs to"):
        lost(EXPECTED, stored, states, stamp=True)
