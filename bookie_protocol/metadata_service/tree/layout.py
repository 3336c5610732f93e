"""The node `LAYOUT`: which manager class lays out the ledgers.

Format 2 (written): `2` LF `<factory class>:1`, no newline at the end. Format 1 named `flat` or
`hierarchical` in place of the class.

Pure; any thread.

Sources: reference metadata layout, section 3.2.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.metadata_service.interface import LedgerLayout

DEFAULT_LAYOUT: Final = LedgerLayout.HIERARCHICAL

_FORMAT_VERSION: Final = 2
_MANAGER_VERSION: Final = 1
_FORMAT_1_NAMES: Final = {"flat": LedgerLayout.FLAT, "hierarchical": LedgerLayout.LEGACY_HIERARCHICAL}


def encode_layout(layout: LedgerLayout) -> bytes:
    return f"{_FORMAT_VERSION}\n{layout.value}:{_MANAGER_VERSION}".encode()


def decode_layout(data: bytes, path: str) -> LedgerLayout:
    """`MetadataDamaged` names `path` and what is wrong."""
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    parts = lines[1].split(":") if len(lines) > 1 else []
    if len(parts) != 2 or not lines[0].isdecimal() or not parts[1].strip().isdecimal():
        raise MetadataDamaged(f"{path} is no layout: {text[:200]!r}")
    version, name, manager_version = int(lines[0]), parts[0], int(parts[1])
    if version not in (1, _FORMAT_VERSION) or manager_version != _MANAGER_VERSION:
        raise MetadataDamaged(f"{path} has layout format {version}, manager {manager_version}: neither is known here")
    if version == 1 and name in _FORMAT_1_NAMES:
        return _FORMAT_1_NAMES[name]
    try:
        return LedgerLayout(name)
    except ValueError:
        raise MetadataDamaged(f"{path} names the layout {name!r}, which this release does not know") from None
