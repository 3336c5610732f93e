"""A log file for the trial: text as services write it, the same at every run."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

_LEVELS: Final = ("INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
_EVENTS: Final = (
    "session opened by user-{a} from 10.{b}.{c}.{d}",
    "GET /orders/{a} 200 {b} ms",
    "POST /carts/{a}/items 201 {b} ms",
    "checkpoint {a} written, {b} segments, {c} ms",
    "queue depth {a}, oldest message {b} ms",
    "retrying shard-{c} after {b} ms",
    "cache hit ratio 0.{a}, {d} evictions",
)
_DAY_MS: Final = 86_400_000


def write_sample_log(path: Path, size: int) -> None:
    """Write `size` bytes of log lines to `path`; the last line may be cut. Blocks."""
    random = Random(20110401)
    number, clock, written = 0, 0, 0
    with path.open("wb") as file:
        while written < size:
            lines = []
            for _ in range(4096):
                number += 1
                bits = random.getrandbits(48)
                clock += bits & 7
                lines.append(_line(number, clock, bits))
            block = "".join(lines).encode()[: size - written]
            file.write(block)
            written += len(block)


def _line(number: int, clock: int, bits: int) -> str:
    event = _EVENTS[bits % len(_EVENTS)].format(
        a=bits >> 8 & 0xFFFF, b=bits >> 24 & 0xFF, c=bits >> 32 & 0xFF, d=bits >> 40 & 0xFF
    )
    seconds, ms = divmod(clock % _DAY_MS, 1000)
    stamp = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"
    return f"2011-04-01T{stamp}Z {_LEVELS[bits % len(_LEVELS)]:5} [worker-{bits & 15:02d}] #{number:08d} {event}\n"
