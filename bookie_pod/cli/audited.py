"""Commands that change a cluster or a bookie's files, for the audit trail.

Each is a line in the file that `auditLogFile` of its configuration names (`--config`, `BOOKIE_CONF`, or the environment
variable `BK_auditLogFile`); without one there is none. Of its command line the line has what the table names: never a
URI, a path or a password. Commands that ask a bookie by HTTP are in that bookie's trail instead.

Threads: the command's own.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import click

VARIABLE: Final = "BK_auditLogFile"
CHANGES: Final[dict[str, tuple[str, ...]]] = {
    "cluster autorecovery disable": (),
    "cluster autorecovery enable": (),
    "cluster client-quarantine": ("switch",),
    "cluster cookie create": ("bookie_id",),
    "cluster cookie delete": ("bookie_id", "force"),
    "cluster cookie update": ("bookie_id",),
    "cluster decommission": ("bookie_id", "plan", "status", "undo", "stopped", "keep_cookie", "force"),
    "cluster force-auditor-checks": ("ledgers", "placement", "replicas"),
    "cluster format": ("instance_id", "force"),
    "cluster init": ("instance_id", "if_absent"),
    "cluster lost-delay set": ("seconds",),
    "cluster metadata copy": (),
    "cluster metadata reopen": (),
    "cluster metadata restore": ("older",),
    "cluster nuke": ("root", "instance_id", "force"),
    "cluster recover": ("bookies", "query", "dry_run", "ledger_id", "delete_cookie", "skip_unrecoverable"),
    "cluster rename-bookie": ("old", "new", "dry_run"),
    "cluster trigger-audit": (),
    "disk convert": ("engine", "unclean"),
    "disk finish": (),
    "disk format": (),
    "disk rebuild-index-files": ("ledgers", "missing", "dry_run", "accept_damage"),
    "disk rebuild-ledgers": (),
    "disk rebuild-locations": ("accept_damage",),
    "disk rename-bookie": ("old", "new"),
    "ledger create": ("ledger_id",),
    "ledger delete": ("ledger_ids", "force"),
    "ledger read": ("ledger_id", "recover"),
    "ledger recover": ("ledger_id",),
    "ledger write": ("ledger_id",),
    "stream append": ("name", "create_it", "no_take_over"),
    "stream create": ("name",),
    "stream cursors": ("name", "move", "delete_it"),
    "stream delete": ("names", "keep_ledgers", "force"),
    "stream seal": ("name",),
    "stream truncate": ("name", "before", "retention", "force"),
}
"""Parameters that the line shows, by the words of the command."""
_ONLY_WITH: Final = {"cluster client-quarantine": "switch", "ledger read": "recover"}
"""Commands that change nothing without an option."""


def audit_changes(cli: click.Group) -> None:
    """Have every command of the table leave its line."""
    for words, told in CHANGES.items():
        command: click.Command = cli
        for word in words.split():
            assert isinstance(command, click.Group), words
            command = command.commands[word]
        assert command.callback is not None, words
        command.callback = _audited(words, told, command, command.callback)


def _audited(
    words: str, told: tuple[str, ...], command: click.Command, callback: Callable[..., Any]
) -> Callable[..., Any]:
    configured = [each.name for each in command.params if "--config" in each.opts]
    option = _ONLY_WITH.get(words)

    @functools.wraps(callback)
    def run(*arguments: Any, **values: Any) -> Any:
        if option is not None and not values[option]:
            return callback(*arguments, **values)
        path = _log_file(values.get(configured[0] or "") if configured else None)
        if path is None:
            return callback(*arguments, **values)
        of = {name: values[name] for name in told if values.get(name) not in (None, False, ())}
        try:
            code = callback(*arguments, **values)
        except BaseException as error:
            _write(path, words, of, "failed", type(error).__name__)
            raise
        failed = isinstance(code, int) and code != 0
        _write(path, words, of, "failed" if failed else "done", f"exit code {int(code)}" if failed else None)
        return code

    return run


def _log_file(configuration: str | None) -> str | None:
    file = configuration or os.environ.get("BOOKIE_CONF")
    if not file:
        return os.environ.get(VARIABLE) or None
    from bookie_pod.config.load import load_config

    return load_config(file).access.audit_log_file


def _write(path: str, words: str, of: dict[str, Any], outcome: str, reason: str | None) -> None:
    """Never raises: the command has done its work."""
    import json

    from bookie_pod import audit
    from bookie_pod.roles import EVERYTHING, Caller

    caller = Caller(_user(), socket.gethostname(), EVERYTHING)
    line = audit.line("cli", caller, f"bookie {words}", audit.request_id(None), outcome, of, reason)
    try:
        audit.append(path, json.dumps(line) + "\n")
    except OSError as error:
        click.echo(f"bookie: auditLogFile={path}: {error.strerror or error}: this is not in it: {line}", err=True)


def _user() -> str:
    """Whom the kernel says that the process is: variables of the environment say what anybody likes."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
