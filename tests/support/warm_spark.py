"""The Python of Spark's tasks without the price of its start and imports: forks of a process that has imported them.

Spark starts `PYTHON -m pyspark.daemon WORKER` for every kind of worker and every change of their environment, and a
module of PySpark's for the source of every streaming query, which has ten seconds to answer; and it finds PySpark in an
archive of sources, which each of them compiles anew. `spark_python` is a program that Spark takes for Python: PySpark's
modules run in forks of a warm parent, and whatever else it is asked for is left to Python. Who is to see the start of a
worker, or brings a Python path of its own, takes Python itself.

That program runs this file too, so it imports as little as it can. Any thread may call `spark_python`.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys

STARTED_BY = "PODKEEPER_TEST_STARTED_BY"
"""The variable that tells a worker which process, a Java of Spark, has asked for its daemon."""
_WORD = struct.Struct(">i")


def spark_python() -> str:
    """The path of the program; it works as long as this process does."""
    from tests.support.warm import warm_parent

    # Workers write through, as Spark wants it, and agree on hashes. Arrow starts no thread of its allocator.
    variables = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    parent = warm_parent(_imported(), **variables)
    program = parent.folder / "python"
    if not program.exists():
        new = program.with_suffix(".new")
        new.write_text(f'#!/bin/sh\nexec {sys.executable} -ISE {__file__} {parent.path} {sys.executable} "$@"\n')
        new.chmod(0o755)
        new.rename(program)
    return str(program)


def _imported() -> list[str]:
    from pkgutil import walk_packages

    import pyspark.sql.worker

    import pyspark_bookie

    ours = [module.name for module in walk_packages(pyspark_bookie.__path__, "pyspark_bookie.")]
    theirs = [module.name for module in walk_packages(pyspark.sql.worker.__path__, "pyspark.sql.worker.")]
    more = ["pyspark.sql.streaming.python_streaming_source_runner", "pyspark.daemon", "pyspark.worker", "pyarrow"]
    return [*more, *theirs, *(name for name in ours if not name.endswith("__main__"))]


def daemon(_arguments: list[str]) -> None:
    """In the fork: what `python -m pyspark.daemon WORKER` does."""
    from unittest import mock

    from pyspark.daemon import manager

    _take_path()
    with mock.patch("os.setpgid"):  # it leads a session, which is a group of its own
        manager()


def module(arguments: list[str]) -> None:
    """In the fork: what `python -m MODULE` does."""
    from runpy import run_module

    _take_path()
    sys.modules.pop(arguments[0], None)
    run_module(arguments[0], run_name="__main__", alter_sys=True)


def _take_path() -> None:
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in others if path not in sys.path]


def main(path: str, python: str, arguments: list[str]) -> int:
    """Hand files, arguments and environment over to the warm parent; the exit code of its fork."""
    if arguments[:1] != ["-m"] or not arguments[1].startswith("pyspark."):
        os.execv(python, [python, *arguments])
    environment = {**os.environ, STARTED_BY: str(os.getppid())}
    is_daemon = arguments[1] == "pyspark.daemon"
    program, rest = ("daemon", arguments[2:]) if is_daemon else ("module", arguments[1:])
    request = json.dumps([f"tests.support.warm_spark:{program}", rest, environment, os.getcwd()]).encode()
    with socket.socket(socket.AF_UNIX) as parent:
        parent.connect(path)
        socket.send_fds(parent, [_WORD.pack(len(request))], [0, 1, 2])
        parent.sendall(request)
        parent.recv(_WORD.size, socket.MSG_WAITALL)  # its process id
        code: int = _WORD.unpack(parent.recv(_WORD.size, socket.MSG_WAITALL))[0]
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
