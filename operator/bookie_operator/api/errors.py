"""The errors of a call of the API server, each with its type.

`Absent` is an answer: there is no such thing. `Unreachable` is not an answer: the state is unknown. They are never
taken for each other.

Threads: any.
"""

from __future__ import annotations


class KubernetesError(Exception):
    """A call did not do what it was made for; the text names the call and what the server says."""


class Absent(KubernetesError):
    """404: there is no such object, or no such kind."""


class Conflict(KubernetesError):
    """409: it is there already, or it is not what it was when it was read (resource version or UID)."""


class Forbidden(KubernetesError):
    """401 and 403: the service account of the operator may not."""


class Invalid(KubernetesError):
    """400 and 422: refused by a schema, a rule or admission; `message` is the server's."""

    def __init__(self, text: str, message: str) -> None:
        super().__init__(text)
        self.message = message


class Undeclared(KubernetesError):
    """The definition of a resource lacks fields of its status without which nothing of it may be written."""

    def __init__(self, text: str, fields: frozenset[str]) -> None:
        super().__init__(text)
        self.fields = fields


class TooManyRequests(KubernetesError):
    """429: an eviction that a budget forbids, or a server that sheds load."""

    def __init__(self, text: str, message: str, retry_after_s: float | None) -> None:
        super().__init__(text)
        self.message = message
        self.retry_after_s = retry_after_s


class Expired(KubernetesError):
    """410: the list that is being read is too old to be continued; begin it again."""


class Unreachable(KubernetesError):
    """The server did not answer in time, had a fault (5xx), or its answer cannot be read: the request may be done."""
