"""Passwords of ledgers on the command line: from a file or the environment, because arguments are public.

Any user of the machine can read a process's arguments; so there is no option that takes the password itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import click

from bookie_protocol.errors import InvalidConfiguration

PASSWORD_VARIABLE: Final = "BOOKIE_LEDGER_PASSWORD"
MAX_BYTES: Final = 64 * 1024


def password_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--password-file`; the command gets its path as `password_file` and calls `read_password`."""
    return click.option(
        "--password-file",
        metavar="FILE",
        help=f"File with the ledger's password; one newline at its end does not count. [environment: the password"
        f" itself in {PASSWORD_VARIABLE}; default: empty]",
    )(command)


def read_password(path: str | None) -> bytes:
    """The password. Raises `InvalidConfiguration` for a file that cannot be read."""
    if path is None:
        return os.environb.get(PASSWORD_VARIABLE.encode(), b"")
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidConfiguration(f"--password-file {path}: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise InvalidConfiguration(f"--password-file {path}: larger than {MAX_BYTES} bytes")
    return text.removesuffix(b"\n").removesuffix(b"\r")
