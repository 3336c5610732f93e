"""Integrity in a bookie: the scrubber's wiring, and the comparison of what is stored with what metadata says."""
