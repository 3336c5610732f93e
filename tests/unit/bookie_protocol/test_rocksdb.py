from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Rdict, WriteBatch

from bookie_protocol.rocksdb import common_options

ROWS = 3000


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as a killed process leaves it while memory tables wait to be written out."""
    folder = tmp_path_factory.mktemp("killed") / "db"
    options = common_options()
    options.set_write_buffer_size(64 << 10)
    options.set_min_write_buffer_number_to_merge(6)
    options.set_max_write_buffer_number(8)
    database = Rdict(str(folder), options)
    for number in range(ROWS):
        batch = WriteBatch(raw_mode=True)
        batch.put(b"%08d" % number, b"v" * 40)
        database.write(batch)
        if number % 100 == 99:
            database.flush_wal(True)
    copy = shutil.copytree(folder, folder.with_name("copy"))
    database.close()
    assert len(_logs(copy)) > 2
    return copy


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


@pytest.mark.parametrize(
    "damage",
    [lambda log: os.truncate(log, log.stat().st_size - 100), lambda log: os.truncate(log, 0), lambda log: log.unlink()],
    ids=["cut", "emptied", "removed"],
)
def test_a_log_that_lacks_something_in_front_of_another_is_refused(
    killed: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """What a seal says of the newest row would not see it."""
    for number in range(len(_logs(killed)) - 1):
        folder = shutil.copytree(killed, tmp_path / str(number))
        damage(_logs(folder)[number])
        with pytest.raises(Exception, match=r"(?i)corruption|no such|missing"):
            Rdict(str(folder), common_options())


def test_otherwise_everything_is_there(killed: Path, tmp_path: Path) -> None:
    database = Rdict(str(shutil.copytree(killed, tmp_path / "db")), common_options())
    assert database.get([b"%08d" % number for number in range(ROWS)]) == [b"v" * 40] * ROWS
    database.close()
