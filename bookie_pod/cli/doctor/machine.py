"""The machine of a bookie: descriptors, threads, memory, the clock, and settings of the kernel. Changes nothing."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from typing import Final

from bookie_pod.cli.doctor.findings import Finding, State
from bookie_pod.cli.tables import size_text
from bookie_pod.config.cgroups import group_limits
from bookie_pod.config.derive import available_memory_bytes, process_memory_mb
from bookie_pod.config.model import BookieConfig
from bookie_pod.descriptors import bookie_connections, raise_descriptor_limit
from bookie_pod.server.tcp.listener import BACKLOG

FEW_DESCRIPTORS: Final = 16_384
FEW_THREADS: Final = 512
"""A bookie, its gateway and the libraries of both start some hundred threads where there are many directories."""
MUCH_SWAPPING: Final = 10
"""A `vm.swappiness` above which the kernel moves memory of a process that is in use."""
_SYSCTL: Final = "/proc/sys"
_SWAPS: Final = "/proc/swaps"
_TIMEX_BYTES: Final = 512
"""Bytes of a buffer that is larger than a `struct timex` on any system."""
_TIME_ERROR: Final = 5
"""Result of adjtimex(2) for a clock that is not synchronised."""


def machine_findings(config: BookieConfig) -> Iterator[Finding]:
    """Check what a bookie takes from its machine."""
    yield _descriptors()
    yield _threads()
    yield _memory(config)
    yield _clock()
    yield _backlog()
    yield _swap()


def _descriptors() -> Finding:
    limit = raise_descriptor_limit()
    shown = "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    text = f"{shown} may be open, of which {bookie_connections():,} are for connections of clients"
    if limit != resource.RLIM_INFINITY and limit < FEW_DESCRIPTORS:
        return Finding("descriptors", State.WARNING, text, "raise the hard limit (ulimit -Hn, LimitNOFILE=)")
    return Finding("descriptors", State.OK, text)


def _threads() -> Finding:
    """The user's limit counts the threads of all its processes; the container's those within it."""
    limits = group_limits("pids", "pids.max", "pids.max")
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if own != resource.RLIM_INFINITY and os.geteuid():  # root has no limit of its own
        limits.append(own)
    if (machine := _number(f"{_SYSCTL}/kernel/threads-max")) is not None:
        limits.append(machine)
    if not limits:
        return Finding("threads", State.UNKNOWN, "the kernel does not tell their limit", "mount /proc")
    text = f"{min(limits):,} may run"
    if min(limits) < FEW_THREADS:
        return Finding("threads", State.WARNING, text, "raise the limit (ulimit -u, TasksMax=, pids.max)")
    return Finding("threads", State.OK, text)


def _memory(config: BookieConfig) -> Finding:
    """Adds up what the processes may have."""
    needed = process_memory_mb(config.memory.budget_mb)
    if config.grpc.server_enabled:
        needed += 2 * config.gateway.memory_mb
    there = available_memory_bytes()
    text = f"{size_text(there)}, of which {size_text(needed << 20)} may be needed (memoryBudgetMb, gatewayMemoryMb)"
    if needed << 20 > there:
        return Finding("memory", State.WARNING, text, "lower memoryBudgetMb, or give the container more memory")
    return Finding("memory", State.OK, text)


def _clock() -> Finding:
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError):
        state = -1
    if state == _TIME_ERROR:
        text = "the kernel does not know of anything that synchronises it"
        return Finding("clock", State.WARNING, text, "run chrony or systemd-timesyncd on the machine")
    if state < 0:
        return Finding("clock", State.UNKNOWN, "the kernel does not tell whether it is synchronised", "ask chronyc")
    return Finding("clock", State.OK, "is synchronised")


def _backlog() -> Finding:
    part, most = "kernel net.core.somaxconn", _number(f"{_SYSCTL}/net/core/somaxconn")
    if most is None:
        return Finding(part, State.UNKNOWN, "could not be read", "mount /proc/sys")
    text = f"{most:,} connections may wait at a port"
    if most < BACKLOG:
        text = f"only {text}: clients that all connect again after a restart are delayed"
        return Finding(part, State.WARNING, text, f"sysctl -w net.core.somaxconn={4 * BACKLOG}")
    return Finding(part, State.OK, text)


def _swap() -> Finding:
    part = "kernel vm.swappiness"
    try:
        with open(_SWAPS, encoding="utf-8", errors="replace") as file:
            areas = file.readlines()[1:]
    except OSError:
        return Finding(part, State.UNKNOWN, "whether the machine swaps could not be read", "mount /proc")
    wish = _number(f"{_SYSCTL}/vm/swappiness")
    if not areas:
        return Finding(part, State.OK, "the machine has no swap")
    if wish is None:
        return Finding(part, State.UNKNOWN, "could not be read", "mount /proc/sys")
    if wish > MUCH_SWAPPING:
        text = f"is {wish}, and the machine has swap: adds wait for memory that was moved to a disk"
        return Finding(part, State.WARNING, text, "sysctl -w vm.swappiness=1, or swapoff -a")
    return Finding(part, State.OK, f"is {wish}")


def _number(path: str) -> int | None:
    """Return the number in a file of the kernel; None if there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(64).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
