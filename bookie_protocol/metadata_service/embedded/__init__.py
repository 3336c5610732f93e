"""Embedded driver: a tree of nodes in RocksDB, owned by one process and served to others over gRPC."""
