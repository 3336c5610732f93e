"""Oxia's client protocol: `oxia.proto` (its messages), `wire` (names of its calls, headers and errors)."""

from bookie_protocol.quiet import without_fork_handlers

without_fork_handlers()  # before a module of this package loads gRPC
