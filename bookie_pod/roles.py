"""The roles of callers of the HTTP and the gRPC port, and a caller who has some.

Frozen; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_protocol.errors import Unauthorized


class Role(Enum):
    """The roles; each route and each call names the one that it needs."""

    VIEWER = "viewer"
    """Looks at states and lists: no password of a ledger, no payload."""
    READER = "reader"
    """Reads ledgers over gRPC, of which it knows the passwords."""
    WRITER = "writer"
    """Creates, writes and closes ledgers over gRPC too."""
    OPERATOR = "operator"
    """Runs the cluster: modes, garbage collection, scrubs, recovery, decommission. Gives no data up."""
    ADMIN = "admin"
    """All rights: deletes ledgers, reads them without their passwords, changes cookies and settings."""


EVERYTHING: Final = frozenset(Role)
CHANGES: Final = frozenset({Role.WRITER, Role.OPERATOR, Role.ADMIN})
"""Roles whose operations are in the audit trail."""
_CONTAINED: Final = {
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.READER: frozenset({Role.VIEWER, Role.READER}),
    Role.WRITER: frozenset({Role.VIEWER, Role.READER, Role.WRITER}),
    Role.OPERATOR: frozenset({Role.VIEWER, Role.OPERATOR}),
    Role.ADMIN: EVERYTHING,
}


def with_contained(roles: Iterable[Role]) -> frozenset[Role]:
    """Return these roles, and those that they contain: a writer may read, an admin may do everything."""
    return frozenset[Role]().union(*(_CONTAINED[role] for role in roles))


def roles_named(text: str) -> frozenset[Role]:
    """Return the roles of a list with commas, with those that they contain. `ValueError` names one that is none."""
    try:
        return with_contained(Role(name) for name in text.split(","))
    except ValueError:
        raise ValueError(f"of {text[:100]!r} one is not a role; there are {', '.join(ROLE_NAMES)}") from None


ROLE_NAMES: Final = tuple(role.value for role in Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, as far as it is known."""

    name: str
    """Name for the audit trail; never a secret."""
    address: str
    roles: frozenset[Role]
    is_known: bool = True
    """It showed a credential that counts, or needs none."""
    stands_as: frozenset[Role] | None = None
    """The roles by which it has places and turns, where it uses fewer; None: `roles`."""

    def may(self, role: Role) -> bool:
        return role in self.roles

    @property
    def runs_cluster(self) -> bool:
        """Return whether it is an operator or an admin: places and turns are kept for these, not for writers."""
        return Role.OPERATOR in (self.roles if self.stands_as is None else self.stands_as)

    def demand(self, role: Role, what: str) -> None:
        """`Unauthorized` unless it has the role that `what` needs beyond that of its route."""
        if role not in self.roles:
            raise Unauthorized(f"{what} needs the role {role.value}, which {self.name} has not")


NOBODY: Final = Caller("nobody", "?", frozenset(), is_known=False)
