"""The client of Apache Pulsar, driven from Python: one JVM, one call after the other.

Any thread may call a `PulsarClient`, one at a time. Whoever starts one stops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tests.interop.java_agent import JavaAgent
from tests.pulsar.broker import java

LARGEST = 5 * 1024 * 1024 - 200
"""Bytes of a message that fits, with what a producer says of it, into the broker's maxMessageSize."""
SINGLE = {"batchingEnabled": False}
"""A batch that is acknowledged in part would come again as a whole."""

SMALL = (100,)
EARLIEST = {"subscriptionInitialPosition": "Earliest"}
QUIET_MS = 2000
"""So long a topic is listened to before there is believed to be nothing more."""
_PATIENCE_MS = 240_000
"""So long a message that has to be there may take."""

Id = tuple[int, int, int]
"""Ledger, entry, place in its batch or -1."""
Acknowledge = Literal["each", "up_to", "none"]


class Refused(Exception):
    """`str` gives the simple name of Pulsar's exception."""


def text(number: int, size: int) -> bytes:
    """What the message of that number holds."""
    return b"".join(b"%09d %09d " % (number, place) for place in range(size // 20 + 1))[:size]


class PulsarClient(JavaAgent):
    """Messages are numbers: the program makes what they hold, and looks at every byte of what it receives."""

    def __init__(self, url: str, log: Path) -> None:
        super().__init__(java(384, 384, "dev.podkeeper.pulsar.ClientAgent", url), log)

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises `Refused`."""
        answer = super().call(do, **arguments)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return answer

    def produce(
        self,
        topic: str,
        count: int,
        *,
        first: int = 0,
        sizes: Sequence[int] = SMALL,
        producer: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Id]:
        """Their ids, once all are acknowledged. `producer`: as in Pulsar's ProducerConfigurationData; `options`: keys,
        delay_ms, transaction."""
        answer = self.call(
            "produce", topic=topic, count=count, first=first, sizes=sizes, producer=producer or {}, **options
        )
        return [(ledger, entry, place) for ledger, entry, place in answer["ids"]]

    def load(self, name: str, topic: str, *, rate: int = 500, sizes: Sequence[int] = SMALL, **producer: Any) -> None:
        """Produces from 0 on until `unload`, so many a second at most."""
        self.call("load", name=name, topic=topic, rate=rate, sizes=sizes, producer=producer)

    def progress(self, name: str, more: int, seconds: int) -> int:
        """Wait until so many more messages of a load are acknowledged; how many are, also when the time is over."""
        return int(self.call("progress", name=name, more=more, seconds=seconds)["acknowledged"])

    def unload(self, name: str) -> int:
        """Ends it; how many messages were acknowledged, which are all that were sent."""
        return int(self.call("unload", name=name)["acknowledged"])

    def subscribe(self, name: str, topic: str, subscription: str, *, records: bool = False, **consumer: Any) -> None:
        """`consumer`: as in Pulsar's ConsumerConfigurationData. A new subscription begins with the first message."""
        options = {"subscriptionName": subscription, **EARLIEST, **consumer}
        self.call("subscribe", name=name, topic=topic, records=records, consumer=options)

    def receive(
        self, name: str, count: int, *, acknowledge: Acknowledge = "each", quiet_ms: int = _PATIENCE_MS, **options: Any
    ) -> list[Any]:
        """Number and key of up to so many messages, in the order in which they came, or the fields of records.
        `options`: transaction."""
        answer = self.call("receive", name=name, count=count, acknowledge=acknowledge, quiet_ms=quiet_ms, **options)
        received: list[Any] = answer["received"]
        return received

    def numbers(self, name: str, count: int, **options: Any) -> list[int]:
        """As `receive`, without the keys."""
        return [number for number, _ in self.receive(name, count, **options)]

    def nothing_more(self, name: str) -> bool:
        return not self.receive(name, 1, quiet_ms=QUIET_MS)

    def consumed(self, topic: str, count: int, subscription: str = "judge") -> list[int]:
        """What a new subscription gets from the beginning on; one message more than so many, if there is one."""
        self.subscribe(subscription, topic, subscription)
        found = self.numbers(subscription, count) if count else []
        found += self.numbers(subscription, 1, quiet_ms=QUIET_MS)
        self.call("close", name=subscription)
        return found
