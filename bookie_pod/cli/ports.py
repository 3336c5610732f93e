"""Ports that a command line chose, before anything is started on them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from typing import Final

from bookie_protocol.errors import InvalidConfiguration, ServerStartFailed

_LOOPBACK: Final = "127.0.0.1"
_LAST: Final = 65535


def check_ports(option: str, ports: Iterable[int]) -> None:
    """Whether somebody can listen there, on the loopback address; 0 is any free port.

    A bookie finds out late that its gRPC port is another process's, and until then that one answers in its place.
    Raises `InvalidConfiguration` for what is no port, and `ServerStartFailed` for one that is in use.
    """
    for port in ports:
        if port > _LAST:
            raise InvalidConfiguration(f"{option}: bookies have ports one after the other, and there is no port {port}")
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not count
            try:
                listener.bind((_LOOPBACK, port))
            except OSError as error:
                reason = "is in use: stop what uses it, or" if error.errno == errno.EADDRINUSE else f"{error.strerror}:"
                raise ServerStartFailed(
                    f"port {port} of {_LOOPBACK} {reason} choose another with {option} (0: any free one)"
                ) from error
