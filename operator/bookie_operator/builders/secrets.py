"""The content of a Secret.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from bookie_operator.builders.config import TOKEN_KEY


def secret_data(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts as the field `data` has them."""
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


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


def token_in(secret: Mapping[str, Any] | None) -> str:
    """The bearer token that is shown: the first one of the admin API's Secret; empty: there is none."""
    lines = map(str.split, (secret_texts(secret) or {}).get(TOKEN_KEY, "").splitlines())
    return next((words[0] for words in lines if words and not words[0].startswith("#")), "")
