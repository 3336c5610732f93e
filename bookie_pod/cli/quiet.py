"""What libraries say of connections on standard error: a command says it itself, in one line."""

from __future__ import annotations

import logging
import os


def quiet_grpc() -> None:
    """To be called before gRPC loads. An error of a command is one line, and the command prints it; and gRPC's fork
    handlers only print complaints, where the children run another program anyway. What a user set stays."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def quiet_kazoo() -> None:
    """kazoo has a line for each try to reach a ZooKeeper. Its errors stay."""
    logging.getLogger("kazoo").setLevel(logging.ERROR)
