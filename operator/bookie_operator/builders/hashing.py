"""Hashes of objects: whether one has to be applied again, or a pod to be made anew.

Canonical JSON is UTF-8 with sorted keys and without blanks; the hash is SHA-256 in lower-case hexadecimal digits. Equal
contents have equal hashes whatever order they were made in, also in another process and another release.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from bookie_operator.crds import names

Manifest = dict[str, Any]
"""An object of Kubernetes, as JSON has it."""

LENGTH: Final = 16
"""Digits of a hash in an annotation: 64 bits tell the contents of one object's history apart."""


def canonical(value: Any) -> bytes:
    """Raises TypeError or ValueError for what JSON cannot hold, such as infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_hash(value: Any, length: int = LENGTH) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()[:length]


def stamped(manifest: Manifest) -> Manifest:
    """A copy with its own hash as annotation `podkeeper.dev/object-hash`."""
    metadata = manifest["metadata"]
    annotations = {key: text for key, text in metadata.get("annotations", {}).items() if key != names.OBJECT_HASH}
    bare = {**manifest, "metadata": {**metadata, "annotations": annotations}}
    annotations = {**annotations, names.OBJECT_HASH: content_hash(bare)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def object_hash(manifest: Manifest) -> str:
    """The hash of a stamped object."""
    return str(manifest["metadata"]["annotations"][names.OBJECT_HASH])


def key_of(manifest: Manifest) -> str:
    """`Kind/name`."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"
