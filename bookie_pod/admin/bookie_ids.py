"""Parameters and errors that several requests share: a bookie, and ledgers whose data is given up. Any thread."""

from __future__ import annotations

from typing import Final

from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.table import Answer
from bookie_protocol.admin_api.bodies import LONG_MAX
from bookie_protocol.admin_api.decommission import BookieQuery
from bookie_protocol.aside import Slices
from bookie_protocol.errors import BadRequest
from bookie_protocol.metadata_service.service_info import is_readable_bookie_id

MOST_LOSSES: Final = 65_536
"""Ids in a list of accepted losses."""
_LONGEST: Final = len(str(LONG_MAX))
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


async def accepted_losses(text: object) -> frozenset[int]:
    """Ledger ids with commas, and blanks or line ends around them, as many ids come from a file; None: none.
    `BadRequest`."""
    if text is None or (isinstance(text, str) and (not text or text.isspace())):
        return frozenset()
    if isinstance(text, str) and text.count(",") < MOST_LOSSES:
        found, slices = set[int](), Slices()  # a viewer may ask what a loss would do
        for each in text.split(","):
            digits = each.strip()
            if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST and int(digits) <= LONG_MAX):
                break
            found.add(int(digits))
            await slices.took(1)
        else:
            return frozenset(found)
    raise BadRequest(f"accept_loss must be ids of ledgers with commas, {MOST_LOSSES} at most, not {str(text)[:100]!r}")
