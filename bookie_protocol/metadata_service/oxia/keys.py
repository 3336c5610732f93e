"""Where nodes are in Oxia: the key of a node is its path, as Apache Pulsar's clients write it. Pure; any thread."""

from __future__ import annotations

from typing import Final

import xxhash

CANARIES: Final = ".podkeeper-canary"
"""Parent of the canary keys, one for each session of a shard. It lies beside the tree, whose keys begin with a slash:
nothing that lists, copies or removes a cluster ever meets one."""
_HASH_BITS: Final = 0xFFFFFFFF


def hash_of(key: str) -> int:
    """Return the number that says in which shard a key is."""
    return int(xxhash.xxh3_64_intdigest(key.encode())) & _HASH_BITS


def children(path: str) -> tuple[str, str]:
    """Return the first key of the range that has the children of a node, and the one behind the last.

    In a namespace that sorts hierarchically the range has them and nothing else. In one that sorts naturally it has
    none of them, so the driver proves the order when it opens its sessions (`sessions`).
    """
    prefix = f"{path.rstrip('/')}/"
    return prefix, f"{prefix}/"


def canary(owner: str, number: int) -> str:
    """Return a key for the canary of this session. Numbers are tried until the key is in the right shard."""
    return f"{CANARIES}/{owner}-{number}"
