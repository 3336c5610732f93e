"""Faults that a person can act on: one line each, and an exit code for scripts.

Threads: any.
"""

from __future__ import annotations

from enum import IntEnum

from bookie_operator.api.errors import Absent, Conflict, Forbidden, Invalid, KubernetesError, TooManyRequests
from bookie_protocol.shown import one_line


class ExitCode(IntEnum):
    """Exit codes, as those of the `bookie` command."""

    OK = 0
    USAGE = 1
    REFUSED = 10
    """Understood, and not done: a rule, a missing right, a task that failed."""
    NOT_THERE = 11
    """There is no such cluster, bookie or namespace."""
    COULD_NOT_TELL = 12
    """The pods or the server did not answer: try again."""
    INTERRUPTED = 130


class Fault(Exception):
    """The text is one line: what is wrong, and what to do."""

    code = ExitCode.COULD_NOT_TELL


class UsageFault(Fault):
    code = ExitCode.USAGE


class RefusedFault(Fault):
    code = ExitCode.REFUSED


class NotThereFault(Fault):
    code = ExitCode.NOT_THERE


def explained(error: KubernetesError, server: str) -> Fault:
    """Return the meaning of an error of the API server for a person."""
    text = one_line(error)
    match error:
        case Forbidden():
            return RefusedFault(f"no access: {text}; log in again, or ask for a role that allows it")
        case Invalid(message=message):
            return RefusedFault(one_line(message))
        case Absent():
            return NotThereFault(text)
        case Conflict():
            return RefusedFault(f"{text}; it was changed meanwhile: try again")
        case TooManyRequests():
            return Fault(f"{text}; try again in a moment")
    return Fault(f"the API server {server} could not be asked: {text}; does it run, and is the context right?")
