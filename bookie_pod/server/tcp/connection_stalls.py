"""The reasons for which a connection reads nothing at present."""

from __future__ import annotations

from enum import IntFlag


class Stall(IntFlag):
    """Independent reasons; a connection goes on when none is left."""

    SLOW_RECEIVER = 1
    """The client does not take its answers."""
    READS_IN_FLIGHT = 2
    """Too many answers, or bytes of answers, are being made."""
    ADDS_PARKED = 4
    """Too many bytes wait for room in the write cache."""
    READS_LIMIT = 8
    """`maxReadsInProgressLimit` is reached."""
    HANDSHAKE = 16
    """An authentication step or the TLS handshake is under way."""
    READS_PUT_ASIDE = 64
    """Too many reads wait until there is room for their answers."""
    LEDGER_ASKED = 128
    """An add waits for what the metadata service knows of its ledger."""
    TURN = 256
    """So many requests were dealt with one by one that it is others' turn."""
    STOPPING = 32
    """The bookie is stopping; never lifted."""
