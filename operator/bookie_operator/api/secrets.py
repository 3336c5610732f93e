"""What a Secret holds.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any


def secret_texts(secret: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Content of a Secret whose values are text; None: there is none."""
    if secret is None:
        return None
    texts = {}
    for key, encoded in (secret.get("data") or {}).items():
        try:
            texts[key] = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return texts
