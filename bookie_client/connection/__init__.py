"""Connections to bookies: wire dialects, one pipelined connection per bookie, the pool."""
