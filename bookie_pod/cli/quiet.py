"""gRPC's own log, which goes to standard error past every logger."""

from __future__ import annotations

import os


def quiet_grpc() -> None:
    """To be called before gRPC loads. An error of a command is one line, and the command prints it; and gRPC's fork
    handlers only print complaints, where the children run another program anyway. What a user set stays."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
