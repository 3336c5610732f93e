"""The start of a command: Ctrl-C ends it at once, and a missing package is one line.

Little is imported here before Ctrl-C is taken care of.
"""

from __future__ import annotations

import sys
from importlib import import_module
from os import _exit
from os.path import basename

try:
    import signal
except KeyboardInterrupt:  # loading it takes longer than all the rest here
    _exit(130)


def run_with(extra: str, module: str) -> None:
    """Run `main` of a module whose imports need this extra. One line and exit code 1 where a package is missing.

    Ctrl-C while it is imported, and when `main` has ended, ends the process with exit code 130 and no traceback.
    """
    # A shell that starts a process in the background has SIGINT ignored, which stays so.
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if catches:
            signal.signal(signal.SIGINT, _end_at_once)
        main = import_module(module).main
        if catches:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except ModuleNotFoundError as error:
        from bookie_protocol.extras import remedy

        sys.exit(f"{basename(sys.argv[0])} needs {remedy(error, extra)}")
    finally:
        if catches:
            signal.signal(signal.SIGINT, _end_at_once)


def _end_at_once(number: int, frame: object) -> None:
    """End the process: nothing has begun, or everything has ended, and imports swallow exceptions."""
    _exit(128 + number)
