"""Checks of what is stored against itself: the scrubber and its register, the consistency check, repair of indexes."""
