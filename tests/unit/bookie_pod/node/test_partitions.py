"""Directories on one file system: a warning, or a refusal if the configuration wants one disk each."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bookie_pod.config.sections.journal import DirectoriesConfig
from bookie_pod.node.identity.ownership import check_partitions
from bookie_pod.storage.files import DiskUsage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.errors import InvalidConfiguration


class TwoDisks(PosixFiles):
    """What is below a folder `second` is on another disk."""

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(total=100, usable=50, device=2 if "second" in path else 1)


def test_directories_on_one_file_system_are_named_in_a_warning(tmp_path: Path) -> None:
    one, other = str(tmp_path / "not-yet" / "a"), str(tmp_path / "b")
    with capture_logs() as logs:
        check_partitions(DirectoriesConfig(ledger=(one, other)), PosixFiles())
    assert [(each["log_level"], each["directories"]) for each in logs] == [("warning", [one, other])]


@pytest.mark.parametrize("kind", ["ledger", "index"])
def test_they_are_refused_on_demand(tmp_path: Path, kind: str) -> None:
    paths = (str(tmp_path / "a"), str(tmp_path / "second"), str(tmp_path / "b"))
    (tmp_path / "second").mkdir()
    directories = DirectoriesConfig(**{"ledger": (paths[0],), kind: paths}, allow_same_disk_partition=False)
    with pytest.raises(InvalidConfiguration) as refused:
        check_partitions(directories, TwoDisks())
    assert str(refused.value).startswith(f"{kind}Directories: {paths[0]}, {paths[2]} are on one file system; ")


def test_disks_of_their_own_are_neither_warned_of_nor_refused(tmp_path: Path) -> None:
    mine, second = str(tmp_path / "a"), str(tmp_path / "second")
    (tmp_path / "second").mkdir()
    directories = DirectoriesConfig(
        journal=(mine,), ledger=(mine, second), index=(mine, second), allow_same_disk_partition=False
    )
    with capture_logs() as logs:
        check_partitions(directories, TwoDisks())
    assert logs == []
