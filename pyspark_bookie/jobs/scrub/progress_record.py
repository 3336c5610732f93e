"""How far a pass of the scrub is: a record of the metadata service, kind `scrub-pass`, named by the pass.

Format: JSON, `{"v": 1, "next": the least ledger id that is not done, "seed": of the sample, "begun": ms since 1970,
"ended": the same or null}`. `ended` is set by the run that came to the end; the next one begins a new pass.

Invariants
- Changes are compare-and-set: of two runs of one name the second to save its progress ends with an error.
- What is below `next` was inspected in this pass, and its findings were reported by the run that did it. Pieces whose
  tasks failed are among these findings, as UNKNOWN, and that run says that it is not complete: the next pass inspects
  them again, so that one bookie that is away does not hold a pass up for ever.

Driver only.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.metadata_service.versioned import Versioned
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.records import JobRecords, TakenOver

KIND: Final = "scrub-pass"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PassState:
    """`name`: of the pass; None: it is not remembered."""

    name: str | None
    next_ledger: int
    seed: int
    begun_ms: int
    ended_ms: int | None = None

    @property
    def key(self) -> str:
        return self.name or ""

    def encode(self) -> bytes:
        document = {
            "v": _VERSION,
            "next": self.next_ledger,
            "seed": self.seed,
            "begun": self.begun_ms,
            "ended": self.ended_ms,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, name: str, data: bytes) -> PassState:
        """Raises `MetadataDamaged`."""
        try:
            document = json.loads(data)
            if document["v"] != _VERSION:
                raise ValueError(f"version {document['v']} is not known")
            ended = document["ended"]
            return cls(
                name,
                int(document["next"]),
                int(document["seed"]),
                int(document["begun"]),
                None if ended is None else int(ended),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataDamaged(f"the record of scrub pass {name} cannot be read: {error}; use --restart") from error


class PassRecord:
    """The record of one pass."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self._name = name
        self._records = JobRecords(client, KIND, self._decoded)
        self._stored: Versioned[PassState] | None = None
        self._restart = False

    def load(self, *, restart: bool) -> PassState:
        """Where to go on; a new pass if the last one ended. Raises `MetadataDamaged`."""
        self._restart = restart
        self._stored = self._records.find(self._name)
        now = int(time.time() * 1000)
        if self._stored is None:
            return PassState(self._name, 0, 0, now)
        last = self._stored.value
        if last.ended_ms is None and not restart:
            return last
        return PassState(self._name, 0, last.seed + 1, now)

    def save(self, state: PassState) -> None:
        """Store it over what was loaded or saved before. Raises `UsageError` when another run did so meanwhile."""
        records, stored = self._records, self._stored
        try:
            self._stored = records.create(state) if stored is None else records.update(stored, state)
        except TakenOver:
            raise UsageError(
                f"another run of pass {self._name} is under way: wait for its end, or name this one by --pass-name"
            ) from None

    def _decoded(self, data: bytes) -> PassState:
        try:
            return PassState.decode(self._name, data)
        except MetadataDamaged:
            if not self._restart:
                raise
            return PassState(self._name, 0, -1, 0)  # the first seed follows
