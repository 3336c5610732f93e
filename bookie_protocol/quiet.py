"""Silence for libraries that write about connections, or secrets, to standard error.

A program reports connections itself, in one line.

Called before gRPC or kazoo is loaded, which this module does not do, on the main thread.
"""

from __future__ import annotations

import logging
import os
from typing import Final

_DEBUG_WITH_SECRETS: Final = ("kazoo.client", "kubernetes.client.rest")
"""They log whole requests and answers at debug: logins, passwords of ledgers, Secrets."""
_WITH_SECRETS: Final = "opentelemetry.util.re"
"""It logs each header for a collector that it cannot read."""


def quiet_grpc() -> None:
    """Keep gRPC from writing past every logger of a program. What a user set stays."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    without_fork_handlers()


def without_fork_handlers() -> None:
    """gRPC's handlers of forks now and then kill a child while other threads are inside of gRPC, also one that is about
    to run another program (Spark starts Java so). Nothing here needs them, because no client survives a fork. What a
    user set stays."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def quiet_kazoo() -> None:
    """kazoo has a line for each try to reach a ZooKeeper. Its errors stay."""
    logging.getLogger("kazoo").setLevel(logging.ERROR)


def quiet_secrets() -> None:
    """Keep loggers of libraries from lines that contain secrets, whatever the level."""
    for name in _DEBUG_WITH_SECRETS:
        logging.getLogger(name).addFilter(_above_debug)
    logging.getLogger(_WITH_SECRETS).addFilter(_nothing)


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _nothing(record: logging.LogRecord) -> bool:
    return False
