"""What all decoders of entries share: how they refuse one. Pure; any thread."""

from __future__ import annotations


class UndecodableEntry(ValueError):
    """The entry is not of the format that was asked for, or of a kind that cannot be decoded here; the text says
    which."""
