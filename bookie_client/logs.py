"""The client's log lines: events with fields, through structlog where a program has set it up, else through `logging`.

structlog's own default prints to standard output, among what the program prints. So in a program that knows nothing of
structlog the client writes to `logging` under its modules' names, and says nothing below a warning until it is asked:

    logging.basicConfig(level=logging.INFO)

Any thread.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


class EventLogger:
    """`info("recovered", ledger=3)`. What is logged must not happen entry by entry."""

    __slots__ = ("_logging", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logging = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, "info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, "warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, "error", event, fields)

    def _log(self, level: int, method: str, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            getattr(structlog.get_logger(self._name), method)(event, **fields)
        elif self._logging.isEnabledFor(level):
            exc_info = fields.pop("exc_info", None)
            text = " ".join((event, *(f"{name}={value}" for name, value in fields.items())))
            self._logging.log(level, "%s", text, exc_info=exc_info)


def get_logger(name: str) -> EventLogger:
    """The logger of a module."""
    return EventLogger(name)
