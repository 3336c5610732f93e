"""The audit trail: one line for each change through HTTP, gRPC or a command, and for each refusal.

Refusals on the bookie's own port have lines too.

    {"time": "2026-01-01T12:00:00.000Z", "via": "http", "who": "ci", "from": "10.0.0.7", "request": "9f2c...",
     "what": "DELETE /api/v1/ledger/delete", "of": {"ledger_id": 5}, "outcome": "done"}

`outcome` is `done`, `failed` (and why not: `reason`), or `refused`.

Invariants
- A line holds no secret: the code that knows that a name is not secret adds it (`audited`); never a body, a token, a
  password.
- It goes to the configured file, else to the ordinary log. A line is one write to a file that is opened each time, so
  that it may be moved away meanwhile, and several processes may share it. A line that the disk took only in part is
  ended before the next one, whichever process wrote it.
- It never raises: a line that cannot be written is a line in the ordinary log. Refusals are a few lines a minute and
  the number of all others (`FewLines`): of each known caller (`MOST_KNOWN` of them), and of strangers together. The
  metric counts all.

Threads: event loop, or a command's own.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from bookie_pod.logs import FewLines
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_protocol.errors import InvalidConfiguration, Unauthorized

MAX_TEXT: Final = 200
"""Characters of any value."""
MAX_VALUES: Final = 32
"""Number of values of a request, and of each list in it."""
MOST_KNOWN: Final = 64
"""Number of callers whose refusals are counted singly. Names come from tokens' files, but also from certificates."""
_MODE: Final = 0o640
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header `traceparent` of W3C; the group is the trace id."""

_log = structlog.get_logger(__name__)
_CURRENT: ContextVar[Act | None] = ContextVar("act", default=None)
_ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)


def request_id(given: str | None, trace_parent: str | None = None) -> str:
    """Return the id of the client's request if it sent one, else its trace id, else a new one. What is not a valid id
    counts as not sent."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    trace = _TRACE_PARENT.fullmatch(trace_parent) if trace_parent is not None else None
    return trace[1] if trace is not None else secrets.token_hex(8)


class Act:
    """A change that goes on. Its task sets what becomes of it."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}
        self.outcome = "done"
        self.reason: str | None = None

    def failed(self, reason: str) -> None:
        """It was not done, or not wholly."""
        self.outcome, self.reason = "failed", reason

    def refused(self, reason: str) -> None:
        """The caller may not."""
        self.outcome, self.reason = "refused", reason


def audited(**values: object) -> None:
    """Note what the change under way is about, for its line; nothing secret.

    Without effect where no change is under way.
    """
    act = _CURRENT.get()
    if act is not None:
        act.of.update(values)


def audited_failure(reason: str) -> None:
    """Note that the change under way came to nothing."""
    act = _CURRENT.get()
    if act is not None:
        act.failed(reason)


@dataclass(slots=True)
class Asked:
    """The request under way and its caller."""

    audit: Audit
    caller: Caller
    what: str
    request: str
    has_line: bool = False
    """True if it turned out to be a change, whose line also reports its refusal."""


@contextmanager
def asking(asked: Asked) -> Iterator[None]:
    """Round the work of a call whose request may demand more than its role."""
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def asked_by() -> Caller:
    """The caller of the call that goes on."""
    asked = _ASKED.get()
    return NOBODY if asked is None else asked.caller


def asked_request() -> tuple[str, str]:
    """Return the name of the present call, and the id of its request; empty texts outside of a call."""
    asked = _ASKED.get()
    return ("", "") if asked is None else (asked.what, asked.request)


def audited_refusal(reason: str) -> None:
    """The call that goes on is refused, whether it changes something or only looks."""
    act, asked = _CURRENT.get(), _ASKED.get()
    if act is not None:
        act.refused(reason)
    elif asked is not None and not asked.has_line:
        asked.audit.refused(asked.caller, reason, asked.what, asked.request)


@contextmanager
def changing(role: Role, what: str, **of: object) -> Iterator[None]:
    """Round `what` a call does that else only looks, where it changes something: `Unauthorized` unless its caller has
    the role, and a line in any case. `of`: as for `audited`."""
    asked = _ASKED.get()
    if asked is None:
        NOBODY.demand(role, what)
        return
    asked.has_line = True
    with asked.audit.act(asked.caller, role, asked.what, asked.request) as act:
        act.of.update(of)
        if not asked.caller.may(role):
            act.refused(f"it needs the role {role.value}")
        asked.caller.demand(role, what)
        yield


class Audit:
    """The audit trail of one port: `via` is `http`, `grpc`, `bookie` or `metadata`."""

    def __init__(self, via: str, registry: Registry, path: str | None = None) -> None:
        """`path`: of a log of its own. `InvalidConfiguration`: it cannot be written."""
        self.via = via
        self._path = path
        self._done, self._failed, self._refused, self._lost = (
            registry.scope("bookie_audit", via=via, outcome=outcome).counter("ACTIONS")
            for outcome in ("done", "failed", "refused", "lost")
        )
        self._refusals: dict[str, FewLines] = {"": FewLines(_Trail(self, "strangers"))}
        """Refusals by the name of a known caller; those of all others under ""."""
        self._telling: dict[str, asyncio.TimerHandle] = {}
        """Timers, by the name whose refusals were left out."""
        self._faults = FewLines(_log)
        if path is not None:
            try:
                append(path, "")
            except OSError as error:
                raise InvalidConfiguration(f"auditLogFile={path}: {error.strerror or error}") from error

    @contextmanager
    def act(self, caller: Caller, role: Role, what: str, request: str) -> Iterator[Act]:
        """A change: its line comes when it has ended, whatever its end."""
        act = Act()
        token = _CURRENT.set(act)
        try:
            yield act
        except BaseException as error:
            if act.outcome == "done":
                (act.refused if isinstance(error, Unauthorized) else act.failed)(type(error).__name__)
            raise
        finally:
            _CURRENT.reset(token)
            counter = {"done": self._done, "failed": self._failed}.get(act.outcome, self._refused)
            counter.add(1)
            if self._path is not None or role is not Role.WRITER or act.outcome == "refused":
                fields = line(self.via, caller, what, request, act.outcome, act.of, act.reason)
                if act.outcome == "refused":
                    self._write_refusal(caller, fields)
                else:
                    self.write(fields)

    def refused(self, caller: Caller, why: Role | str, what: str, request: str) -> None:
        """The caller lacks the role, or may not for another reason."""
        self._refused.add(1)
        reason = f"it needs the role {why.value}" if isinstance(why, Role) else why
        fields = line(self.via, caller, what, request, "refused", {}, reason)
        self._write_refusal(caller, fields)

    def kept_out(self, address: str, what: str, reason: str) -> None:
        """Note a refusal on the bookie's own port, which is in the log already."""
        self._refused.add(1)
        if self._path is not None:
            stranger = Caller("a stranger", address, frozenset(), is_known=False)
            self._write_refusal(stranger, line(self.via, stranger, what, "", "refused", {}, reason))

    def _write_refusal(self, caller: Caller, fields: dict[str, Any]) -> None:
        name = caller.name if caller.is_known else ""
        if name not in self._refusals:
            if len(self._refusals) > MOST_KNOWN:
                name = ""
            else:
                self._refusals[name] = FewLines(_Trail(self, name))
        self._refusals[name].warning("refused", line=fields)
        self._tell_later(name)

    def _tell_later(self, name: str) -> None:
        if name not in self._telling and (seconds := self._refusals[name].tells_in) is not None:
            with suppress(RuntimeError):  # a command has no event loop, and ends soon
                self._telling[name] = asyncio.get_running_loop().call_later(seconds, self._tell, name)

    def _tell(self, name: str) -> None:
        """Write the number of lines that were left out, even if no refusal follows."""
        del self._telling[name]
        self._refusals[name].look()
        self._tell_later(name)  # an event loop may call a little before its time

    def write(self, fields: dict[str, Any]) -> None:
        """Never raises."""
        if self._path is None:
            _log.info("audit", **fields)
            return
        try:
            append(self._path, json.dumps(fields) + "\n")
        except (OSError, ValueError) as error:
            self._lost.add(1)
            self._faults.warning("the audit log cannot be written", path=self._path, reason=str(error), line=fields)


class _Trail:
    """Takes what `FewLines` lets pass."""

    def __init__(self, audit: Audit, who: str) -> None:
        self._audit = audit
        self._who = who

    def warning(self, event: str, **fields: Any) -> None:
        left_out = {"time": now(), "via": self._audit.via, "who": self._who, "what": event, **fields}
        self._audit.write(fields.get("line", left_out))


def line(
    via: str, caller: Caller, what: str, request: str, outcome: str, of: dict[str, Any], reason: str | None
) -> dict[str, Any]:
    """Return the fields of one line."""
    found: dict[str, Any] = {
        "time": now(),
        "via": via,
        "who": _shown(caller.name),
        "from": _shown(caller.address),
        "request": request,
        "what": _shown(what),
        "outcome": outcome,
    }
    if of:
        found["of"] = {name: _shown(value) for name, value in list(of.items())[:MAX_VALUES]}
    if reason is not None:
        found["reason"] = _shown(reason)
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(each) for each in list(value)[:MAX_VALUES]]
    text = str(value)
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    return "".join(character if character.isprintable() else "?" for character in cut)


def append(path: str, text: str) -> None:
    """One write. Raises OSError."""
    # Not blocking: a pipe without a reader must not hold up the writer.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
    try:
        data = text.encode("utf-8", "replace")
        if data and _is_torn(descriptor, path):
            data = b"\n" + data
        if data and os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


def _is_torn(descriptor: int, path: str) -> bool:
    """Return whether the last line of the file has no end: the disk was full."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return False
    try:
        with open(path, "rb") as file:
            file.seek(found.st_size - 1)
            return file.read(1) not in (b"\n", b"")
    except OSError:
        return False  # it may be written, but not read
