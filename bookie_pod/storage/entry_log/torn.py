"""The remains of an entry that a power cut has torn, as bytes.

A power cut takes whole sectors, which are zeros then.

Threads: any.
"""

from __future__ import annotations

from typing import Final

from bookie_pod.storage.entry_log.format import ENTRY_HEAD, SIZE_BYTES

_IDS_END: Final = ENTRY_HEAD.size - SIZE_BYTES
_CLIENT_HEAD_END: Final = _IDS_END + 16
_NOTHING: Final = bytes(_CLIENT_HEAD_END - _IDS_END)
"""The bytes of LAC and length that were not written."""


def is_torn_from(torn: bytes, whole: bytes) -> bool:
    """Return whether a power cut took bytes of `torn`: each byte that differs is zero, or so is all that follows the
    ids, so that the ids may have lost bytes too, and these are the rest of another entry."""
    if torn[_IDS_END:_CLIENT_HEAD_END] == _NOTHING != whole[_IDS_END:_CLIENT_HEAD_END]:
        return True
    if len(torn) != len(whole):
        return False
    return torn != whole and all(byte in (0, known) for byte, known in zip(torn, whole, strict=True))
