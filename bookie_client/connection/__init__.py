"""Connections to bookies: wire dialects, one pipelined connection per bookie, the pool.

dialect.Dialect              v2 or v3: bytes in, `Answer` out; one frame serves all replicas of an add
pool.ChannelPool             channels to bookies; its `connector` is the network, which a simulation replaces (only
                             the event loop's clock is looked at)
operations.BookieOperations  single requests, awaited: fence, LAC, long poll, batch read, force, space, list of
                             entries; ranges have batch reads without a task (`BatchRequest`)
health.BookieHealth          preferences: who failed, is slow or quarantined; expected read time; never a refusal
channel.Channel              connects on demand, START_TLS and authentication before the first request
connection.Connection        what is sent in one turn goes out together; what comes in: bytes, frames, answers, each for
                             the request that waits; the memory that the network writes into
"""
