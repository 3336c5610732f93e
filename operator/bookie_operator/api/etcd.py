"""The etcd that the operator runs for a cluster, as passes see it.

`etcd_members` speaks to it over gRPC, which the kubectl plugin does not load.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bookie_operator.world.facts import EtcdFacts


class EtcdError(Exception):
    """The request was not carried out, or its outcome is unknown."""


class Etcd(Protocol):
    """The etcd of one cluster; `hosts` are the addresses of its members by pod name."""

    async def look(self, hosts: Mapping[str, str]) -> EtcdFacts | None:
        """Return the facts that its members report; None: none of them gave the list of members."""

    async def remove_member(self, hosts: Mapping[str, str], member: int) -> None:
        """Take a member out of the list. Raises EtcdError."""

    async def add_member(self, hosts: Mapping[str, str], peer_url: str) -> None:
        """Add a member to the list, which has not started yet. Raises EtcdError."""
