"""The client's log lines: events with fields, through structlog if the program has set it up, else through `logging`.

structlog's own default prints to standard output, among what the program prints. So in a program that knows nothing of
structlog the client writes to `logging` under its modules' names, and writes nothing below a warning until the program
asks for it:

    logging.basicConfig(level=logging.INFO)

A client does not need structlog, and does not import it: a program that has set it up has imported it.

Any thread.
"""

from __future__ import annotations

import logging
import sys
from typing import Any


class EventLogger:
    """A logger of one module: `info("recovered", ledger=3)`. Log nothing entry by entry."""

    __slots__ = ("_logging", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logging = logging.getLogger(name)

    def critical(self, event: str, **fields: Any) -> None:
        self._log(logging.CRITICAL, "critical", event, fields)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, "info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, "warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, "error", event, fields)

    def _log(self, level: int, method: str, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger(self._name), method)(event, **fields)
        elif self._logging.isEnabledFor(level):
            exc_info = fields.pop("exc_info", None)
            text = " ".join((event, *(f"{name}={value}" for name, value in fields.items())))
            self._logging.log(level, "%s", text, exc_info=exc_info)


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module."""
    return EventLogger(name)
