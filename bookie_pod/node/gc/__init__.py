"""Garbage collection in a bookie: the metadata service as it sees it, its options, its metrics, and who drives it."""
