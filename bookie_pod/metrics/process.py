"""Metrics of the process, by the names that Prometheus clients share.

Reads `/proc/self` at every scrape; where there is none (not Linux) nothing is reported. Any thread may call.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from typing import Final

from bookie_pod.metrics.registry import Sample

_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessCollector:
    """Collector of `process_*`; give it to `Registry.add_collector`."""

    def __init__(self, proc: str = "/proc") -> None:
        """`proc` is where the kernel's process information is mounted."""
        self._proc = proc
        self._boot_time = self._read_boot_time()

    def __call__(self) -> Iterator[Sample]:
        """CPU time, memory, start time and open files."""
        try:
            with open(os.path.join(self._proc, "self/stat"), encoding="utf-8", errors="replace") as file:
                # The second field is the command in parentheses and may hold blanks.
                fields = file.read().rpartition(")")[2].split()
            open_files = len(os.listdir(os.path.join(self._proc, "self/fd")))
        except OSError:
            return
        user, system, start, virtual, resident = (int(fields[i]) for i in (11, 12, 19, 20, 21))
        yield Sample("process_cpu_seconds_total", "counter", (user + system) / _CLOCK_TICKS)
        if self._boot_time is not None:
            yield Sample("process_start_time_seconds", "gauge", self._boot_time + start / _CLOCK_TICKS)
        yield Sample("process_virtual_memory_bytes", "gauge", virtual)
        yield Sample("process_resident_memory_bytes", "gauge", resident * _PAGE_SIZE)
        yield Sample("process_open_fds", "gauge", open_files)
        yield Sample("process_max_fds", "gauge", resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def _read_boot_time(self) -> int | None:
        try:
            with open(os.path.join(self._proc, "stat"), encoding="ascii") as file:
                return next((int(line.split()[1]) for line in file if line.startswith("btime ")), None)
        except OSError:
            return None
