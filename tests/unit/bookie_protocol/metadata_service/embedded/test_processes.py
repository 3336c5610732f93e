from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bookie_protocol.metadata_service.embedded import processes
from bookie_protocol.metadata_service.embedded.processes import is_gone, this_process


def test_this_process_runs() -> None:
    name = this_process()
    assert name.split(" ")[-2] == str(os.getpid())
    assert not is_gone(name)


def test_a_process_that_ended_is_gone_also_before_it_is_buried() -> None:
    program = "from bookie_protocol.metadata_service.embedded.processes import this_process; print(this_process())"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(name)
    child.communicate()
    assert is_gone(name)


def test_another_process_of_this_pid() -> None:
    place, pid, started = this_process().rsplit(" ", 2)
    assert is_gone(f"{place} {pid} {int(started) - 1}")


@pytest.mark.parametrize("name", ["", "x", "boot 1 2", "boot namespace pid 7", "boot 4026531836 1 7"])
def test_of_other_places_nothing_is_known(name: str) -> None:
    assert not is_gone(name)


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    name = this_process()
    monkeypatch.setattr(processes, "_BOOT_ID", "/nowhere")
    assert this_process() == processes.UNKNOWN
    assert not is_gone(name)


def test_a_process_that_may_not_be_seen_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = this_process()

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    monkeypatch.setattr(processes, "_started", lambda pid: None)
    assert not is_gone(name)
