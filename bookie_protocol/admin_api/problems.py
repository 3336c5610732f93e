"""Errors of the admin API as problem details (RFC 9457): what a program acts on is the type, the detail is for people.

Podkeeper's own paths answer errors like this; those of Apache BookKeeper answer one line of text, as Apache's do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie_protocol.admin_api.bodies import Body
from bookie_protocol.errors import NoCookie, NotDecommissioned, NotThere

PROBLEM_TYPE: Final = "application/problem+json"
BLANK: Final = "about:blank"
"""Nothing more is known than what the status says."""
_KINDS: Final[Mapping[str, type[NotThere]]] = {
    "urn:podkeeper:problem:not-decommissioned": NotDecommissioned,
    "urn:podkeeper:problem:no-cookie": NoCookie,
}


class Problem(Body, kw_only=True):
    """Why a request was not carried out."""

    type: str = BLANK
    """What it is; `about:blank`: nothing more is known than what the status says."""
    title: str = ""
    """The same for people, in few words."""
    status: int = 0
    """The HTTP status."""
    detail: str = ""
    """What is wrong, of what, and what helps, in one line."""
    refusal: str = ""
    """Of `not-decommissioned`: why the last attempt ended that this bookie was asked for; empty: there was none."""


def problem_of(status: int, title: str, detail: str, error: Exception | None = None) -> Problem:
    """`error`: of which type it is told, where it has one."""
    name = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), BLANK)
    refusal = error.refusal if isinstance(error, NotDecommissioned) else ""
    return Problem(type=name, title=title, status=status, detail=detail, refusal=refusal)


def error_of(problem: Problem) -> NotThere | None:
    """The error that a problem stands for; None: its type says nothing."""
    kind = _KINDS.get(problem.type)
    if kind is NotDecommissioned:
        return NotDecommissioned(problem.detail, problem.refusal)
    return kind(problem.detail) if kind is not None else None
