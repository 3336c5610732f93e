"""What libraries say of connections on standard error, and do at forks: a program says it itself, in one line.

Called before gRPC or kazoo is loaded, which this module does not do, on the main thread.
"""

from __future__ import annotations

import logging
import os


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
