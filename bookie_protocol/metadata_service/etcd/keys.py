"""The keys of nodes in etcd.

Everything of a cluster lies below `<root>/`, so that several clusters can share one etcd, and a user needs a role for
that prefix only.

| what | key |
|---|---|
| node `<root>/a/b` | `<root>/a//b`: the last slash is double, so that the children of a node are one range |
| the root itself | `<root>//` |
| how many sequential names were given below a node | `<node>/#`; its version counts |
| a session, as long as its lease lasts | `<root>/@/<lease>` |

Keys of nodes have a double slash, the others have none: no name of a node can be mistaken for another key.

Pure; any thread.
"""

from __future__ import annotations

Range = tuple[bytes, bytes]
"""First key, and the one behind the last."""


class Keys:
    """The keys of one cluster. `root` begins with a slash and does not end with one."""

    def __init__(self, root: str) -> None:
        self.root = root

    def holds(self, path: str) -> bool:
        """Return True if the path is the root or below it: there are no other nodes."""
        return path == self.root or path.startswith(f"{self.root}/")

    def is_below(self, path: str) -> bool:
        """Return True if the root is below the path."""
        return self.root.startswith(f"{path.rstrip('/')}/")

    def node(self, path: str) -> bytes:
        if path == self.root:
            return f"{path}//".encode()
        parent, _, name = path.rpartition("/")
        return f"{parent}//{name}".encode()

    def children(self, path: str) -> Range:
        return f"{path}//\0".encode(), f"{path}/0".encode()

    def names(self, path: str, keys: list[bytes]) -> list[str]:
        """Return the names of the children that have these keys."""
        length = len(path.encode()) + 2
        return [key[length:].decode() for key in keys]

    def counter(self, path: str) -> bytes:
        return f"{path}/#".encode()

    def session(self, lease: int) -> bytes:
        return f"{self.root}/@/{lease:x}".encode()
