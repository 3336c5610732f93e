"""How far a pass of the scrub is: a record of the metadata service, kind `scrub-pass`, named by the pass.

Format: JSON, `{"v": 1, "next": the least ledger id that is not done, "seed": of the sample, "begun": ms since 1970,
"ended": the same or null}`. `ended` is set by the run that came to the end; the next one begins a new pass.

Invariants
- Changes are compare-and-set: of two runs of one name the second to save its progress ends with an error.
- What is below `next` was looked at in this pass, and its findings were reported by the run that did it.

Driver only.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Final

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import MetadataDamaged, MetadataExists, MetadataNotFound, MetadataVersionConflict
from bookie_protocol.metadata_service.interface import Versioned
from pyspark_bookie.jobs.framework.arguments import UsageError

KIND: Final = "scrub-pass"


@dataclass(frozen=True, slots=True)
class PassState:
    """`version` None: not stored yet."""

    next_ledger: int
    seed: int
    begun_ms: int
    ended_ms: int | None = None
    version: int | None = None


class PassRecord:
    """The record of one pass."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self._client = client
        self._name = name

    def load(self, *, restart: bool) -> PassState:
        """Where to go on; a new pass if the last one ended. Raises `MetadataDamaged`."""
        now = int(time.time() * 1000)
        found = self._read()
        if found is None:
            return PassState(0, 0, now)
        try:
            stored = _decode(self._name, found.value, found.version)
        except MetadataDamaged:
            if not restart:
                raise
            return PassState(0, 0, now, version=found.version)
        if stored.ended_ms is None and not restart:
            return stored
        return PassState(0, stored.seed + 1, now, version=stored.version)

    def save(self, state: PassState) -> PassState:
        """Store it over what was loaded or saved before. Raises `UsageError` when another run did so meanwhile."""
        data = _encode(state)
        version = state.version
        try:
            if version is None:
                stored = self._client.run(lambda each: each.metadata_service.records(KIND).create(self._name, data))
            else:
                stored = self._client.run(
                    lambda each: each.metadata_service.records(KIND).update(self._name, data, version)
                )
        except (MetadataExists, MetadataVersionConflict, MetadataNotFound):
            raise UsageError(
                f"another run of pass {self._name} is under way: wait for its end, or name this one by --pass-name"
            ) from None
        return replace(state, version=stored)

    def _read(self) -> Versioned[bytes] | None:
        try:
            return self._client.run(lambda each: each.metadata_service.records(KIND).read(self._name))
        except MetadataNotFound:
            return None


def _encode(state: PassState) -> bytes:
    document = {
        "v": 1,
        "next": state.next_ledger,
        "seed": state.seed,
        "begun": state.begun_ms,
        "ended": state.ended_ms,
    }
    return json.dumps(document).encode()


def _decode(name: str, data: bytes, version: int) -> PassState:
    try:
        document = json.loads(data)
        if document["v"] != 1:
            raise ValueError(f"version {document['v']} is not known")
        ended = document["ended"]
        return PassState(
            int(document["next"]),
            int(document["seed"]),
            int(document["begun"]),
            None if ended is None else int(ended),
            version,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataDamaged(f"the record of scrub pass {name} cannot be read: {error}; use --restart") from error
