"""A process steps back from the processors, never forward, and only its own session does."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys
from bookie_client.cpu_priority import yield_processors
os.setpriority(os.PRIO_PROCESS, 0, max(int(sys.argv[1]), os.getpriority(os.PRIO_PROCESS, 0)))
yield_processors(int(sys.argv[2]))
try:
    group = open("/proc/self/autogroup").read()  # empty where the kernel groups otherwise
except OSError:
    group = ""
print(os.getpriority(os.PRIO_PROCESS, 0), (group.split() or ["none"])[-1])
"""


def _run(before: int, wanted: int, *, own_session: bool = True) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(before), str(wanted)],
        start_new_session=own_session,
        capture_output=True,
        text=True,
        check=True,
    )
    niceness, group = done.stdout.split()
    return int(niceness), group


@pytest.mark.parametrize(("before", "wanted"), [(0, 19), (18, 10), (0, 0)])
def test_a_process_is_at_least_as_nice_as_it_should_be(before: int, wanted: int) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert _run(before, wanted)[0] == max(mine, before, wanted)


def test_the_own_session_goes_with_it_and_a_shared_one_does_not() -> None:
    assert _run(0, 19)[1] in ("19", "none")
    if os.getpriority(os.PRIO_PROCESS, 0) < 18:
        before = _run(0, 0, own_session=False)[1]
        assert _run(0, 18, own_session=False) == (18, before)
