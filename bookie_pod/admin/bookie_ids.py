"""What several requests name alike, a bookie and ledgers whose data is given up, and how they may end. Any thread."""

from __future__ import annotations

import re
from typing import Final

from bookie_pod.server.http.api.call import Text
from bookie_pod.server.http.api.table import LONG_MAX, Answer, Kind, Parameter
from bookie_protocol.admin_api.decommission import BOOKIE_PATTERN, LOSSES_PATTERN
from bookie_protocol.errors import BadRequest
from bookie_protocol.metadata_service.service_info import is_readable_bookie_id

BOOKIE: Final = Parameter(
    "bookie_id",
    Kind.TEXT,
    "The bookie.",
    pattern=BOOKIE_PATTERN,
    missing=Text("No bookie_id is given.", 400),
)
LOSSES: Final = Parameter(
    "accept_loss",
    Kind.TEXT,
    "Ids of ledgers, with commas, whose data is given up: that they name it does not count.",
    pattern=LOSSES_PATTERN,
)

_LOSSES: Final = re.compile(LOSSES_PATTERN)
LISTING_S: Final = 600.0
"""Seconds for what lists every ledger of the cluster."""
REFUSED: Final = Answer("Refused, and why.", 409)
NONE: Final = Answer("There is none.", 404)


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
