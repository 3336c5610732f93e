"""Requests that note how they ended."""

from __future__ import annotations

import asyncio

from bookie_client.connection.request import FramedRequest, Request


class Add(FramedRequest):
    """An add that notes which bookie ended it, and how."""

    def __init__(self, key, frame):
        self.key, self.bytes = key, frame
        self.ends = []

    @property
    def frame(self):
        return self.bytes

    def accepted(self, bookie, answer):
        self.ends.append((bookie, None))

    def refused(self, bookie, error):
        self.ends.append((bookie, type(error)))

    def describe(self):
        return "the add"


class Probe(Request):
    """A request that counts how often it ended."""

    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()
        self.times = 0

    def answered(self, entry, max_lac):
        self._end(entry)

    def failed(self, error):
        self._end(error)

    def _end(self, outcome):
        self.times += 1
        if not self.ended.done():
            self.ended.set_result(outcome)

    def describe(self):
        return "the probe"
