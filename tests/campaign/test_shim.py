"""The shim itself: what is not synced is lost with the power and nothing else is, and rules strike what they name."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.campaign.shim.control import Op, Shim
from tests.campaign.shim.power import lose_power

_WRITE = """
import os, sys
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"A" * 3000, 0)
os.fdatasync(fd)
"""
_WRITE_ON = """
os.pwrite(fd, b"B" * 1000, 1000)
os.pwritev(fd, [b"C" * 700, b"D" * 700], 3000)
"""
_SYNC = """
try:
    os.fdatasync(fd)
except OSError as error:
    print(error.errno)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def shim(tmp_path: Path, disk: Path) -> Shim:
    return Shim(tmp_path / "shim", disk)


def run(shim: Shim, disk: Path, *parts: str) -> str:
    """A process that writes, and dies; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(parts), str(disk)],
        env={**os.environ, **shim.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_what_was_synced_stays_and_what_was_not_may_go(shim: Shim, disk: Path) -> None:
    outcomes = set()
    for seed in range(40):
        (disk / "file").unlink(missing_ok=True)
        (disk / "file").write_bytes(b"A" * 3000)
        run(shim, disk, _WRITE, _WRITE_ON)
        lost = lose_power(disk, shim.undo, Random(seed))
        data = (disk / "file").read_bytes()
        assert data[:1000] == b"A" * 1000
        assert data[2000:3000] == b"A" * 1000
        assert lost.writes in (0, 1, 2)
        assert list(shim.undo.iterdir()) == []
        outcomes.add((lost.writes, lost.torn))
        if len(outcomes) >= 4:
            break
    assert (2, 0) in outcomes or (2, 1) in outcomes, "everything may be lost"
    assert (0, 0) in outcomes, "nothing need be lost"


def test_nothing_that_was_synced_is_taken_back(shim: Shim, disk: Path) -> None:
    run(shim, disk, _WRITE, _WRITE_ON, _SYNC)
    assert list(shim.undo.iterdir()) == []
    assert lose_power(disk, shim.undo, Random(1)).writes == 0
    assert (disk / "file").stat().st_size == 4400


def test_what_a_failed_sync_covered_is_not_saved_by_a_later_one(shim: Shim, disk: Path) -> None:
    with shim.rule(Op.SYNC, errno.EIO, path="/file") as hits:
        printed = run(shim, disk, _WRITE.replace("os.fdatasync(fd)", ""), _WRITE_ON, _SYNC)
        assert int(hits) == 1
    assert printed == str(errno.EIO)
    run(shim, disk, "import os, sys\nfd = os.open(sys.argv[1] + '/file', os.O_RDWR)\n", _SYNC)
    assert [part.name.endswith(".doomed") for part in shim.undo.iterdir()] == [True]
    assert lose_power(disk, shim.undo, Random(0)).files == 1


@pytest.mark.parametrize(
    ("ops", "error", "call"),
    [
        (Op.WRITE, errno.ENOSPC, "os.pwrite(fd, b'x', 0)"),
        (Op.WRITE, errno.EIO, "os.pwritev(fd, [b'x', b'y'], 0)"),
        (Op.SYNC, errno.EIO, "os.fsync(fd)"),
        (Op.ALLOCATE, errno.ENOSPC, "os.posix_fallocate(fd, 0, 10000)"),
        (Op.OPEN, errno.EROFS, "os.open(sys.argv[1] + '/file', os.O_RDWR)"),
        (Op.OPEN, errno.EMFILE, "os.open(sys.argv[1] + '/file', os.O_WRONLY)"),
        (Op.READ, errno.EIO, "os.pread(fd, 10, 0)"),
        (Op.NAMES, errno.EROFS, "os.rename(sys.argv[1] + '/file', sys.argv[1] + '/file.new')"),
    ],
)
def test_a_rule_strikes_the_calls_and_the_files_it_names(
    shim: Shim, disk: Path, ops: Op, error: int, call: str
) -> None:
    attempt = f"\ntry:\n    {call}\n    print('done')\nexcept OSError as error:\n    print(error.errno)\n"
    begin = "import os, sys\nfd = os.open(sys.argv[1] + '/file', os.O_RDWR | os.O_CREAT)\n"
    (disk / "file").write_bytes(b"x" * 100)
    with shim.rule(ops, error, path="/another"):
        assert run(shim, disk, begin, attempt) == "done"
    if ops is Op.NAMES:
        (disk / "file.new").rename(disk / "file")
    with shim.rule(ops, error, path="/file"):
        begin = begin if ops is not Op.OPEN else "import os, sys\n"
        assert run(shim, disk, begin, attempt) == str(error)


def test_short_writes_and_a_clock_that_jumps(shim: Shim, disk: Path) -> None:
    with shim.rule(Op.WRITE, path="/file", shorten=True):
        begin = "import os, sys\nfd = os.open(sys.argv[1] + '/file', os.O_RDWR | os.O_CREAT)\n"
        assert run(shim, disk, begin, "print(os.pwrite(fd, b'x' * 100, 0))") == "50"
    shim.set_clock(7_200)
    times = run(shim, disk, "import time\nprint(time.time() - time.clock_gettime(time.CLOCK_TAI))")
    assert 7_100 < float(times) < 7_300
