"""Starting a command: what lies outside of its own `main`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED_AT = {
    "import": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(): print('ran')\n",
    "end": "import atexit, os, signal\ndef main(): atexit.register(os.kill, os.getpid(), signal.SIGINT)\n",
}


@pytest.mark.parametrize("when", INTERRUPTED_AT)
def test_interrupt_outside_of_main_ends_without_a_traceback(tmp_path: Path, when: str) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_AT[when])
    program = f"import sys; sys.path.append({str(tmp_path)!r})\nfrom bookie_protocol.starting import run_with\n"
    command = [sys.executable, "-c", f"{program}run_with('bookie', 'interrupted')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
