"""A test that spins, or hangs in its end, ends with its time-out, and the next one runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

SPINNING = """
import asyncio

import pytest


def busy():
    for _ in range(10_000):
        pass


@pytest.mark.timeout(0.5, func_only=True)
async def test_tasks():
    async def spin():
        while True:
            busy()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(spin()) for _ in range(3)]
    await asyncio.wait(tasks)


@pytest.mark.timeout(0.5, func_only=True)
async def test_callbacks():
    def again():
        asyncio.get_running_loop().call_soon(again)
        busy()

    again()
    await asyncio.Event().wait()


def test_next():
    pass
"""
HANGING = """
import threading

import pytest


@pytest.fixture
def held():
    yield
    threading.Event().wait()


@pytest.mark.timeout(0.5, func_only=True)
def test_takes_too_long(held):
    threading.Event().wait()


def test_next():
    pass
"""
KEPT_BY_A_TASK = """
import asyncio
import time

import pytest


@pytest.fixture
async def working():
    async def work():
        await begin.wait()
        time.sleep(10)

    begin = asyncio.Event()
    task = asyncio.create_task(work())
    yield begin
    await task


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "folder"


@pytest.mark.timeout(0.5)
async def test_takes_too_long(folder, working):
    folder.mkdir()
    working.set()
    await asyncio.Event().wait()


async def test_next(folder):
    folder.mkdir()


async def test_after_the_next(folder):
    folder.mkdir()
"""
PATIENT = """
import time

import pytest


@pytest.mark.timeout(0.1, func_only=True)
def test_with_a_limit_of_its_own():
    time.sleep(0.3)


def test_with_the_limit_of_all():
    time.sleep(0.3)
"""
SETTINGS = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\ntimeout = 60\n"


def run(tmp_path, tests, to_the_end_s, *arguments):
    (tmp_path / "test_these.py").write_text(tests)
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_addoption\nfrom tests.support.timeouts import *\n"
        "def pytest_collection_modifyitems(items): lengthen(items)\n"
    )
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, *arguments, str(tmp_path)]
    root = Path(__file__).parents[3]
    # Without the options of whoever runs this test: they change what is printed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "TO_THE_END_S": to_the_end_s
    }
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_a_busy_event_loop_does_not_outlive_the_time_out(tmp_path):
    ended = run(tmp_path, SPINNING, "60")
    assert "2 failed, 1 passed" in ended.stdout, ended.stdout
    assert ended.stdout.count("Failed: Timeout (>0.5s)") >= 2


def test_a_test_that_cannot_be_taken_down_ends_its_worker_and_no_more(tmp_path):
    ended = run(tmp_path, HANGING, "3", "-n1")
    assert re.search("[12] failed, 1 passed", ended.stdout), ended.stdout  # its failure may still have been told
    assert "crashed while running 'test_these.py::test_takes_too_long'" in ended.stdout
    assert "in held" in ended.stderr


def test_what_a_test_leaves_when_it_takes_too_long_is_nobody_elses(tmp_path):
    """The time-out ends the task that was at work; the fixture that waits for the task raises it again."""
    ended = run(tmp_path, KEPT_BY_A_TASK, "60")
    assert "1 failed, 2 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr


def test_patience_is_given_to_limits_of_a_test_s_own_as_well(tmp_path):
    for patience, result in (("1", "2 failed"), ("100", "2 passed")):
        ended = run(tmp_path, PATIENT, "60", "-o", "timeout=0.1", f"--patience={patience}")
        assert result in ended.stdout, ended.stdout + ended.stderr
