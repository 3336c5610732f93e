"""Parameters and errors that several requests share: a bookie, and ledgers whose data is given up. Any thread."""

from __future__ import annotations

import re
from typing import Final

from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.table import Answer
from bookie_protocol.admin_api.bodies import LONG_MAX
from bookie_protocol.admin_api.decommission import LOSSES_PATTERN, BookieQuery
from bookie_protocol.errors import BadRequest
from bookie_protocol.metadata_service.service_info import is_readable_bookie_id

_LOSSES: Final = re.compile(LOSSES_PATTERN.replace(" ", r"\s"))
"""Pattern of lists of ids as described, with line ends and tabs, too: many ids come from a file."""
LISTING_S: Final = 600.0
"""Seconds for what lists every ledger of the cluster."""
REFUSED: Final = Answer("Refused, and why.", 409)
NONE: Final = Answer("There is none.", 404)


def named_bookie(call: Call) -> str:
    """The bookie that the query names. `BadRequest`."""
    return checked_id(call.asked(BookieQuery).bookie_id, "bookie_id")


def checked_id(value: object, name: str) -> str:
    """A bookie id. `BadRequest`."""
    if not isinstance(value, str) or not is_readable_bookie_id(value):
        raise BadRequest(f"{name} must be a bookie id, not {str(value)[:100]!r}")
    return value


def accepted_losses(text: object) -> frozenset[int]:
    """Ledger ids with commas; None: none. `BadRequest`."""
    text = "" if text is None else text
    if isinstance(text, str) and _LOSSES.fullmatch(text):
        found = frozenset(map(int, text.split(","))) if text.strip() else frozenset[int]()
        if max(found, default=0) <= LONG_MAX:
            return found
    raise BadRequest(f"accept_loss must be ids of ledgers with commas, not {str(text)[:100]!r}")
