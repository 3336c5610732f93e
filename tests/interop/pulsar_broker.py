"""What a broker of Apache Pulsar does with its topics: Pulsar's own managed ledgers, without the broker's protocol.

Any thread may call a `PulsarBroker`, one at a time. Whoever starts one stops it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.java_agent import JavaAgent
from tests.interop.java_programs import command
from tests.support.java import MavenProject

PROJECT = MavenProject(Path(__file__).parent / "java-pulsar")

Position = tuple[int, int]
"""Ledger and entry."""


class PulsarRefused(Exception):
    """`str` gives the simple name of Pulsar's exception."""


class PulsarBroker(JavaAgent):
    """One process. Topics are named as Pulsar stores them: "tenant/namespace/persistent/topic"."""

    def __init__(self, metadata_uri: str, log: Path, *, driver: str = "pulsar") -> None:
        """`driver`: whose code reads BookKeeper's metadata, pulsar's (the default of brokers) or bookkeeper's."""
        line = command(PROJECT.class_path(), "dev.podkeeper.pulsar.ManagedLedgerAgent", metadata_uri, driver)
        super().__init__(line, log)

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises `PulsarRefused`."""
        answer = super().call(do, **arguments)
        if "refused" in answer:
            raise PulsarRefused(answer["refused"])
        return answer

    def open(
        self, topic: str, *, entries: int | None = None, compression: str = "NONE", offloads: bool = False
    ) -> None:
        """Takes the topic over. `entries`: at most in a ledger; `compression`: of the metadata that are written;
        `offloads`: into a tier that keeps nothing."""
        self.call("open", topic=topic, entries=entries, compression=compression, offloads=offloads)

    def append(self, topic: str, payloads: Sequence[bytes]) -> list[Position]:
        """All at once. Returns when all are acknowledged; one that is not makes it raise."""
        answer = self.call("append", topic=topic, payloads=[base64.b64encode(each).decode() for each in payloads])
        return [(ledger, entry) for ledger, entry in answer["positions"]]

    def append_batch(self, topic: str, messages: Sequence[Mapping[str, str]], compression: str = "NONE") -> Position:
        """One entry, as a producer makes it of messages with "key", "value" and "user"."""
        encoded = [{**each, "value": base64.b64encode(each["value"].encode()).decode()} for each in messages]
        answer = self.call("append", topic=topic, messages=encoded, compression=compression)
        ((ledger, entry),) = answer["positions"]
        return ledger, entry

    def read(self, topic: str, cursor: str, count: int) -> list[tuple[Position, bytes]]:
        """What comes next and is not acknowledged, up to `count` entries; fewer at the topic's end."""
        answer = self.call("read", topic=topic, cursor=cursor, count=count)
        return [((ledger, entry), base64.b64decode(payload)) for ledger, entry, payload in answer["entries"]]

    def mark_deleted(self, topic: str, cursor: str) -> Position:
        """The last entry before which, and with which, everything is acknowledged. Opens the cursor, at the topic's
        end if it is new."""
        ledger, entry = self.call("cursor", topic=topic, cursor=cursor)["mark_deleted"]
        return ledger, entry

    def acknowledge(self, topic: str, cursor: str, positions: Sequence[Position]) -> None:
        """Each alone."""
        self.call("acknowledge", topic=topic, cursor=cursor, positions=positions)

    def acknowledge_up_to(self, topic: str, cursor: str, position: Position) -> None:
        """All before it too."""
        self.call("acknowledge_up_to", topic=topic, cursor=cursor, positions=[position])

    def trim(self, topic: str) -> None:
        """Deletes the ledgers that every cursor has passed."""
        self.call("trim", topic=topic)

    def statistics(self, topic: str) -> dict[str, Any]:
        """As administrators see a topic."""
        statistics: dict[str, Any] = self.call("statistics", topic=topic)["statistics"]
        return statistics

    def stored(self, topic: str, *, compression: str = "NONE") -> dict[str, Any]:
        """What Pulsar's own code reads in the metadata of a topic."""
        stored: dict[str, Any] = self.call("stored", topic=topic, compression=compression)["stored"]
        return stored

    def ledgers(self, topic: str) -> list[int]:
        """That are listed."""
        return [each["ledgerId"] for each in self.stored(topic)["ledgers"]]
