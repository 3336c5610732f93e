"""Readers of a stopped bookie's directories: nothing here changes a file."""
