"""Logs: one structured line per event, as JSON or for people.

Everything goes to standard error, the records of libraries that use `logging` too (kazoo, aiohttp, grpc).
Nothing is logged per entry or per request.

Invariants
- `configure` is called once, before threads start; afterwards any thread may log.
- An event is a short phrase that does not change, what varies is in fields.
- Logging never raises: a reader that is gone, a full disk or a value that cannot be shown costs a line, not the thread
  that had something to say.
- Lines that strangers can cause are few (`FewLines`): `MOST` in full in `PER_S` seconds, of all others their number. So
  are the warnings and errors of libraries, each logger's for itself: what a library complains about is often chosen by
  a stranger. What gRPC's C core would write to standard error by itself is off (`GRPC_VERBOSITY` turns it on).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog

from bookie_protocol.quiet import quiet_grpc, quiet_secrets

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
MOST: Final = 20
PER_S: Final = 60.0
MOST_LOGGERS: Final = 100
"""Number of loggers of libraries that have a number of lines each; all others share one."""
MOST_CHARACTERS: Final = 1000
"""Characters of the message of a library's line."""


def configure(log_format: str = "json", level: str = "info", stream: TextIO | None = None) -> None:
    """Set up logging for this process: `log_format` json or console, `level` debug, info, warning or
    error."""
    stream = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor]
    if log_format == "console":
        plain = structlog.dev.plain_traceback  # others show local variables, of which some are secret
        renderer = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, _Rendering(renderer)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: _Writer(stream),
        cache_logger_on_first_use=True,
    )
    quiet_grpc()  # its C core writes a line for each handshake that fails, and not as JSON
    quiet_secrets()
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    # Libraries speak at info of what only their authors need.
    root.setLevel(_LEVELS[level] if level in ("debug", "error") else logging.WARNING)


class _Rendering:
    """The last processors; what they cannot show is named at least."""

    def __init__(self, renderer: list[structlog.typing.Processor]) -> None:
        self._renderer = renderer

    def __call__(self, log: Any, method: str, event: structlog.typing.EventDict) -> Any:
        shown: Any = dict(event)
        try:
            for step in self._renderer:
                shown = step(log, method, shown)
        except Exception as error:
            return f"{method}: {event.get('event')!s} (its fields cannot be shown: {type(error).__name__})"
        return shown


class _Writer(structlog.WriteLogger):
    """Writes lines as long as the stream takes them."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def logger(name: str, **fields: Any) -> structlog.typing.FilteringBoundLogger:
    """A logger for one part; `fields` go with every line."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(part=name, **fields))


class _ToStructlog(logging.Handler):
    """Hands records of the standard library's logging to structlog, few of each logger. `handle` holds its lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._few: dict[str, FewLines] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = logging.getLevelName(record.levelno).lower()
            if record.levelno < logging.WARNING:
                getattr(logger(record.name), level if level in _LEVELS else "info")(record.getMessage())
            elif (few := self._few_of(record.name)).may_write():
                method = getattr(few.log, level if level in _LEVELS else "error")
                message = record.getMessage()[:MOST_CHARACTERS]
                method(message, **({"exc_info": record.exc_info} if record.exc_info else {}))
        except Exception:
            self.handleError(record)

    def _few_of(self, name: str) -> FewLines:
        if name not in self._few and len(self._few) >= MOST_LOGGERS:
            name = "others"
        if name not in self._few:
            self._few[name] = FewLines(logger(name), clock=self._clock)
        return self._few[name]


class FewLines:
    """Lines of one kind that strangers can cause. One thread at a time."""

    def __init__(self, log: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self._clock = clock
        self._until = clock() + PER_S
        self._written = 0
        self._left_out = 0

    def warning(self, event: str, **fields: object) -> None:
        """A client did what it must not."""
        if self.may_write():
            self.log.warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """A request showed a fault of ours."""
        if self.may_write():
            self.log.error(event, **fields)

    @property
    def tells_in(self) -> float | None:
        """Seconds until `look` has something to say; None: nothing was left out."""
        return max(0.0, self._until - self._clock()) if self._left_out else None

    def look(self) -> None:
        """Report the number of lines that were left out, once their time is over; called every now and then."""
        if self._clock() >= self._until:
            left_out, self._left_out = self._left_out, 0
            self._written = 0
            self._until = self._clock() + PER_S
            if left_out:
                self.log.warning("more lines of this kind were left out", lines=left_out, seconds=PER_S)

    def may_write(self) -> bool:
        """Return whether the line that asks is one of the few; if not, count it."""
        self.look()
        if self._written >= MOST:
            self._left_out += 1
            return False
        self._written += 1
        return True
