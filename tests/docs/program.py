"""The program that runs the python blocks of a page: with the packages of a newcomer, without those of this checkout.

Each line of its input is a block, as JSON; the answer is what the block printed. All blocks of a page share one
namespace and one event loop, so `await` may stand outside of functions, and a client lives from block to block. Between
blocks the loop stands still.
"""

from __future__ import annotations

import ast
import asyncio
import faulthandler
import inspect
import io
import json
import os
import signal
import sys
import traceback
from contextlib import redirect_stdout


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # says where a block stands that does not end
    with os.fdopen(os.dup(1), "w") as answers, asyncio.Runner() as runner:
        os.dup2(2, 1)  # what the children of a block print must not look like an answer
        namespace: dict[str, object] = {"__name__": "docs"}
        for line in sys.stdin:
            printed, error = io.StringIO(), ""
            try:
                with redirect_stdout(printed):
                    _run(runner, namespace, **json.loads(line))
            except BaseException:
                error = traceback.format_exc()
            answers.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\n")
            answers.flush()


def _run(runner: asyncio.Runner, namespace: dict[str, object], code: str, page: str, line: int) -> None:
    compiled = compile("\n" * (line - 1) + code, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, namespace)
    if inspect.iscoroutine(result):
        runner.run(result)


if __name__ == "__main__":
    main()
