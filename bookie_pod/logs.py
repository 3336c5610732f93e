"""Logs: one structured line per event, as JSON or for people.

Everything goes to standard error, the records of libraries that use `logging` too (kazoo, aiohttp, grpc).
Nothing is logged per entry or per request.

Invariants
- `configure` is called once, before threads start; afterwards any thread may log.
- An event is a short phrase that does not change, what varies is in fields.
- Logging never raises: a reader that is gone, a full disk or a value that cannot be shown costs a line, not the thread
  that had something to say.
- Lines that strangers can cause are few (`FewLines`): `MOST` in full in `PER_S` seconds, of all others their number.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
MOST: Final = 20
PER_S: Final = 60.0


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
        renderer = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    else:
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[*shared, _Rendering(renderer)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: _Writer(stream),
        cache_logger_on_first_use=True,
    )
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
    """Writes lines as long as somebody takes them."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def logger(name: str, **fields: Any) -> structlog.typing.FilteringBoundLogger:
    """A logger for one part; `fields` go with every line."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(part=name, **fields))


class _ToStructlog(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            name = logging.getLevelName(record.levelno).lower()
            log = logger(record.name)
            method = getattr(log, name if name in _LEVELS else "error")
            method(record.getMessage(), **({"exc_info": record.exc_info} if record.exc_info else {}))
        except Exception:
            self.handleError(record)


class FewLines:
    """Lines of one kind that strangers can cause. Event loop only."""

    def __init__(self, log: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._until = clock() + PER_S
        self._written = 0
        self._left_out = 0

    def warning(self, event: str, **fields: object) -> None:
        """A client did what it must not."""
        if self._may_write():
            self._log.warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """A request showed a fault of ours."""
        if self._may_write():
            self._log.error(event, **fields)

    def look(self) -> None:
        """To be called every now and then: say what was left out, once its time is over."""
        if self._clock() >= self._until:
            left_out, self._left_out = self._left_out, 0
            self._written = 0
            self._until = self._clock() + PER_S
            if left_out:
                self._log.warning("more lines of this kind were left out", lines=left_out, seconds=PER_S)

    def _may_write(self) -> bool:
        self.look()
        if self._written >= MOST:
            self._left_out += 1
            return False
        self._written += 1
        return True
