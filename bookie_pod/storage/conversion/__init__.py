"""Offline changes of a whole index: built beside the one in use, checked, then put in its place."""
