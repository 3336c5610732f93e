"""Logs: one line of JSON for each event, on standard error, the records of libraries (kopf, aiohttp, urllib3) too.

Threads: `configure` once at the start; logging from any.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

import structlog

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(log_format: str = "json", level: str = "info", stream: TextIO | None = None) -> None:
    """`log_format`: json or console; `level`: debug, info, warning or error."""
    stream = stream or sys.stderr
    renderer: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]
    if log_format == "console":
        renderer = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    # Libraries say at info what only their authors need: kopf each event that it handles.
    root.setLevel(LEVELS[level] if level in ("debug", "error") else logging.WARNING)


class _ToStructlog(logging.Handler):
    """Hands records of the standard library's logging over."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {"part": record.name}
            if record.exc_info:
                fields["exc_info"] = record.exc_info
            name = logging.getLevelName(record.levelno).lower()
            getattr(structlog.get_logger(), name if name in LEVELS else "error")(record.getMessage(), **fields)
        except Exception:
            self.handleError(record)
