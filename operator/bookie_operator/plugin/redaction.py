"""What leaves the cluster in a support bundle bears no secrets.

Invariants
- Values of Secrets never, whatever they are called: their keys alone.
- Elsewhere a value goes if its name, or the key of a line, sounds like a password, a token or a credential. Names of
  Secrets and paths of files stay: they say where a value is, and are needed to understand the rest.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "REDACTED"
_SENSITIVE: Final = re.compile(r"(?i)(passw(or)?d|secret|token|credential|private.?key|api.?key|authorization)")
_HARMLESS: Final = re.compile(
    r"(?i)(name|path|file|ref|keyref|optional|class|automountServiceAccountToken|serviceAccountToken|expirationSeconds)$"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}")
_INLINE: Final = re.compile(
    r"(?i)([A-Za-z_]*(?:passw(?:or)?d|secret|token|credential)[A-Za-z_]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&}]+"
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def redacted(thing: Mapping[str, Any]) -> dict[str, Any]:
    """An object of Kubernetes, without what its owners keep to themselves."""
    copy: dict[str, Any] = _cleaned(dict(thing))
    if copy.get("kind") == "Secret":
        for part in ("data", "stringData"):
            if isinstance(copy.get(part), dict):
                copy[part] = dict.fromkeys(copy[part], REDACTED)
    metadata = copy.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
        annotations = metadata.get("annotations")
        if isinstance(annotations, dict):
            annotations.pop(_LAST_APPLIED, None)
    return copy


def redacted_text(text: str) -> str:
    """Lines of a log, a properties file or a document."""
    text = _BEARER.sub(lambda found: f"{found[1]} {REDACTED}", text)
    return _INLINE.sub(lambda found: found[0] if _is_reference(found[1]) else found[1] + REDACTED, text)


def sensitive(name: str) -> bool:
    """Whether a value of this name is nobody else's business."""
    return bool(_SENSITIVE.search(name)) and not _HARMLESS.search(name)


def _is_reference(assignment: str) -> bool:
    return bool(_HARMLESS.search(assignment.rstrip(" =:\"'")))


def _cleaned(value: Any, name: str = "") -> Any:
    if isinstance(value, Mapping):
        if "value" in value and isinstance(value.get("name"), str) and sensitive(value["name"]):
            return {**value, "value": REDACTED}
        return {key: _cleaned(child, str(key)) for key, child in value.items()}
    if isinstance(value, list):
        return [_cleaned(child, name) for child in value]
    if isinstance(value, str):
        return REDACTED if value and sensitive(name) else redacted_text(value)
    return value
