"""Embedded driver: a tree of nodes in RocksDB, owned by one process and served to others over gRPC."""

from bookie_protocol.quiet import without_fork_handlers

without_fork_handlers()  # before a module of this package loads gRPC
