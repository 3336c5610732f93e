"""Apache Pulsar's managed ledgers as nodes of the same metadata service: to be read, never written.

Pulsar keeps its metadata below a root of its own, beside that of BookKeeper: `<root>/<tenant>/<namespace>/<domain>/
<topic>`, with one child for each subscription. This module knows where the nodes are, not what they hold.

Errors: `MetadataNotFound` when there is no such node, `MetadataUnavailable` where the state is unknown, `BadRequest`
for an invalid name.

Threads: the event loop on which the service was opened.

Source: docs/internals/metadata-layout.md, section 15.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.errors import BadRequest

ROOT: Final = "/managed-ledgers"
"""Path of Pulsar's managed ledgers, unless its metadata store has a path of its own."""


def check_root(root: str) -> str:
    """Return the root, if it may be one; `BadRequest` otherwise."""
    if not root.startswith("/") or root != "/" + "/".join(_components(root[1:])):
        raise BadRequest(f"{root[:100]!r} is not a valid path of managed ledgers: it looks like {ROOT}")
    return root


def check_name(name: str) -> str:
    """Return the name, if nodes may have it; `BadRequest` otherwise."""
    if name != "/".join(_components(name)):
        raise BadRequest(f"{name[:100]!r} is not a managed ledger: it looks like tenant/namespace/persistent/topic")
    return name


def _components(name: str) -> list[str]:
    return [each for each in name.split("/") if each not in ("", ".", "..") and each.isprintable()]
