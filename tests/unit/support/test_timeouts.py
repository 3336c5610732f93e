"""A test that spins ends with its time-out, and the next one runs."""

import os
import subprocess
import sys
from pathlib import Path

SPINNING = """
import asyncio


def busy():
    for _ in range(10_000):
        pass


async def test_tasks():
    async def spin():
        while True:
            busy()
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(spin()) for _ in range(3)]
    await asyncio.wait(tasks)


async def test_callbacks():
    def again():
        asyncio.get_running_loop().call_soon(again)
        busy()

    again()
    await asyncio.Event().wait()


def test_next():
    pass
"""
SETTINGS = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\ntimeout = 0.5\n"


def test_a_busy_event_loop_does_not_outlive_the_time_out(tmp_path):
    (tmp_path / "test_spinning.py").write_text(SPINNING)
    (tmp_path / "conftest.py").write_text("from tests.support.timeouts import *\n")
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, str(tmp_path)]
    root = Path(__file__).parents[3]
    # Without the options of whoever runs this test: they change what is printed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "2 failed, 1 passed" in ended.stdout, ended.stdout
    assert ended.stdout.count("Failed: Timeout (>0.5s)") >= 2
