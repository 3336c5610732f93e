"""Oxia as a metadata service.

`oxia.proto` has the messages of its protocol, and `wire` the names of its calls, headers and errors. `connection` calls
the leaders of shards and says what their errors mean; `shards` and `keys` say where nodes are. `sessions` keeps one in
each shard, `history` and `watches` hear what changed, `tree` is the driver, and `driver` opens it.
"""

from bookie_protocol.quiet import without_fork_handlers

without_fork_handlers()  # before a module of this package loads gRPC
