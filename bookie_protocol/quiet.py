"""What libraries say of connections on standard error: a program says it itself, in one line.

Called by programs before they connect, on the main thread. Loads neither gRPC nor kazoo.
"""

from __future__ import annotations

import logging
import os


def quiet_grpc() -> None:
    """To be called before gRPC loads: it writes past every logger, and its handlers of forks only complain, where
    children run another program, and in Spark's workers. What a user set stays."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def quiet_kazoo() -> None:
    """kazoo has a line for each try to reach a ZooKeeper. Its errors stay."""
    logging.getLogger("kazoo").setLevel(logging.ERROR)
