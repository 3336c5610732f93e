"""The ports of a bookie: free, or in use by which process.

Listens on each port for a moment; else reads the kernel's tables of sockets and of processes.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.config.model import BookieConfig

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS: Final = "0A"
_PROGRAM, _PACKAGE = "bookie", "bookie_pod"


def port_findings(config: BookieConfig) -> Iterator[Finding]:
    """Check whether the ports can be listened on."""
    wanted = [("bookiePort", "", config.network.bookie_port)]
    if (listener := config.http.listener) is not None:
        wanted.append((listener.port_key, listener.host, listener.port))
    if config.grpc.server_enabled:
        wanted.append(("grpcServerPort", config.grpc.server_host, config.grpc.server_port))
    for key, host, port in wanted:
        if port:
            yield _port(f"port {port} ({key})", host, port)


def _port(part: str, host: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
            tried.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _taken(part, port)
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            return Finding(part, State.UNKNOWN, f"could not be tried: {error.strerror}", "try again")
        return Finding(part, State.PROBLEM, f"cannot be listened on: {error.strerror or error}", "name another one")
    return Finding(part, State.OK, "is free")


def _taken(part: str, port: int) -> Finding:
    owner = owner_of(port)
    if owner is None:
        text = "is in use; its process is unknown"
        return Finding(part, State.UNKNOWN, text, "run `ss -ltnp` as root: a bookie of yours is fine")
    process, words = owner
    if any(os.path.basename(word) == _PROGRAM or word.partition(".")[0] == _PACKAGE for word in words):
        return Finding(part, State.OK, f"a running bookie has it (process {process})")
    name = os.path.basename(words[0]) if words else "unnamed"
    return Finding(part, State.PROBLEM, f"is in use by process {process} ({name})", "stop it, or name another port")


def owner_of(port: int) -> tuple[int, list[str]] | None:
    """Return the process that listens on the port, with its command line; None if the kernel does not tell this
    user."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in filter(str.isdigit, os.listdir("/proc") if sockets else ()):
        try:
            if any(os.readlink(entry.path) in sockets for entry in os.scandir(f"/proc/{process}/fd")):
                with open(f"/proc/{process}/cmdline", "rb") as file:
                    line = file.read(4096).decode(errors="replace")
                return int(process), [word for word in line.split("\0") if word]
        except OSError:
            continue  # it ended, or belongs to another user
    return None


def _listening(port: int) -> Iterator[str]:
    """Return the inodes of the sockets that listen on the port."""
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port:
                yield row[9]
