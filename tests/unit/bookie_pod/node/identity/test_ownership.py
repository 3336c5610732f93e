"""Directories belong to one process, and are told apart by what they are, not by their names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.node.dry_start import refusals
from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.node.identity.ownership import DirectoryInUse, check_distinct, hold_directories
from bookie_protocol.errors import InvalidConfiguration

_HOLDER = """
import sys
from bookie_pod.node.identity.ownership import hold_directories
with hold_directories(sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    made = [tmp_path / name / "current" for name in ("j", "l")]
    for folder in made:
        folder.mkdir(parents=True)
    return [str(folder) for folder in made]


def test_one_process_at_a_time_until_it_ends(folders: list[str]) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, *folders], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with (
        pytest.raises(DirectoryInUse, match="l/current is"),
        hold_directories(folders[1:]),
    ):
        pass
    other.kill()
    other.communicate()
    with hold_directories(folders):
        pass


def test_who_is_refused_holds_nothing_and_changes_nothing(folders: list[str]) -> None:
    with hold_directories(folders[1:]), pytest.raises(DirectoryInUse), hold_directories(folders):
        pass
    with hold_directories(folders):
        assert os.listdir(folders[0]) == []


def test_one_folder_for_several_purposes_and_one_that_is_not_there(folders: list[str], tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path / "l")
    with hold_directories([*folders, folders[0], str(tmp_path / "again" / "current"), str(tmp_path / "n" / "current")]):
        pass
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("spelling", ["l/../l", "link", "l/", "mounted"])
@pytest.mark.parametrize("kind", ["journal", "ledger", "index"])
def test_one_directory_under_two_names_is_refused(folders: list[str], tmp_path: Path, spelling: str, kind: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "l")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "current").symlink_to(folders[1])
    twice = (str(tmp_path / "l"), f"{tmp_path}/{spelling}")
    directories = {"journal": (str(tmp_path / "j"),), "ledger": (str(tmp_path / "o"),), kind: twice}
    with pytest.raises(InvalidConfiguration, match=f"{kind}Directories: .* same"):
        check_distinct(BookieDirectories(**directories))


def test_directories_that_are_not_there_yet_are_compared_by_name(tmp_path: Path) -> None:
    new = f"{tmp_path}/new"
    with pytest.raises(InvalidConfiguration, match="same"):
        check_distinct(BookieDirectories((f"{tmp_path}/j",), (new, f"{tmp_path}/x/../new")))
    check_distinct(BookieDirectories((new,), (new, f"{tmp_path}/other"), (new,)))


def test_a_directory_inside_a_bookies_files_is_refused(folders: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="inside"):
        check_distinct(BookieDirectories((f"{tmp_path}/l/current/j",), (f"{tmp_path}/l",)))
    check_distinct(BookieDirectories((f"{tmp_path}/l/j",), (f"{tmp_path}/l",)))


def test_config_check_refuses_what_a_start_would(tmp_path: Path) -> None:
    file = tmp_path / "bk.conf"
    file.write_text(
        f"journalDirectories={tmp_path}/j\nledgerDirectories={tmp_path}/l,{tmp_path}/x/../l\n"
        "metadataServiceUri=zk+null://127.0.0.1:1/ledgers\nallowLoopback=true\n"
    )
    (line,) = refusals(load_config(str(file)))
    assert "are the same directory" in line
