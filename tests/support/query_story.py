"""A query that copies one stream of ledgers to another, told as a story of deaths: `feed`, `round`, `end`.

One thread uses a `Story`.
"""

from __future__ import annotations

from itertools import count
from random import Random

from bookie_client import BlockingClient
from tests.spark.streams import append, create, manifest, payloads
from tests.support.dying_query import DRIVER, PLACES, PROCESS, Kill, RunSettings
from tests.support.dying_query_driver import DyingQuery


class Story:
    """Entries that are written while the query that copies them is killed again and again."""

    def __init__(
        self, client: BlockingClient, uri: str, query: DyingQuery, seed: int, name: str, master: str = "local[2,4]"
    ) -> None:
        self._client, self._uri, self._query, self._master = client, uri, query, master
        self._random = Random(seed)
        self._source, self._sink = f"{name}-in", f"{name}-out"
        self._numbers = count()
        self.written: list[bytes] = []
        create(client, self._source)
        create(client, self._sink)

    def feed(self) -> None:
        """A further ledger, while the backlog is short."""
        copied = manifest(self._client, self._sink).entries
        if len(self.written) - copied < 100:
            new = [b"entry %d" % next(self._numbers) for _ in range(self._random.randint(1, 40))]
            append(self._client, self._source, new)
            self.written += new

    def round(self, kill: Kill) -> None:
        if not self._query.is_running:
            self.start()
        self._query.until_killed(kill, self.feed)

    def start(self) -> None:
        """With another rate and another number of partitions each time."""
        entries, partitions = self._random.randint(5, 60), self._random.randint(1, 3)
        self._query.start(RunSettings(self._uri, self._source, self._sink, entries, partitions, self._master))

    def end(self) -> None:
        if not self._query.is_running:
            self.start()
        self._query.until_done(lambda: manifest(self._client, self._sink).entries >= len(self.written))
        assert payloads(self._client, self._sink) == self.written
        assert "BOOKIE_" not in self._query.failures

    def random_kill(self, driver_share: float) -> Kill:
        who = DRIVER if self._random.random() < driver_share else PROCESS
        return Kill(self._random.choice(PLACES), who, self._random.randint(0, 2))
