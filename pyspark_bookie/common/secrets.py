"""Secrets of ledgers and of ZooKeeper, by the path of a file.

Only the path travels through plans and partitions; the file is read where it is used, so it must be there on the driver
and on every executor, as a mounted Kubernetes secret is.

Any process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from bookie_protocol.bearer_tokens import first_token
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError

PASSWORD_VARIABLE: Final = "BOOKIE_LEDGER_PASSWORD"
"""The password itself, for tests and single machines; the `bookie` command knows it too."""
_MAX_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class PasswordSource:
    """The source of ledger passwords.

    `recorded`: the one in each ledger's metadata (administration). Else the file, else `BOOKIE_LEDGER_PASSWORD`, else
    the empty password.
    """

    file: str | None = None
    recorded: bool = False

    def __post_init__(self) -> None:
        if self.recorded and self.file is not None:
            raise ValueError("recordedPasswords=true and passwordFile exclude each other")

    def read(self) -> bytes | None:
        """The password for `Client.open`: None means the recorded one. Raises `PodkeeperSparkError` (OPTION)."""
        if self.recorded:
            return None
        if self.file is None:
            return os.environb.get(PASSWORD_VARIABLE.encode(), b"")
        return read_secret("passwordFile", self.file)


def read_secret(name: str, path: str) -> bytes:
    """The content of a file; one newline at its end does not count. Raises `PodkeeperSparkError` (OPTION) naming the
    option `name`, the path and the machine."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PodkeeperSparkError(
            OPTION,
            f"option {name}={path}: {error.strerror} on {os.uname().nodename}; the file must be on every machine",
        ) from None
    if len(text) > _MAX_BYTES:
        raise PodkeeperSparkError(OPTION, f"option {name}={path}: larger than {_MAX_BYTES} bytes")
    return text.removesuffix(b"\n").removesuffix(b"\r")


def read_token(name: str, path: str) -> str | None:
    """The bearer token that the file of the option `name` has first, None if it has none. Raises `PodkeeperSparkError`
    (OPTION)."""
    try:
        return first_token(read_secret(name, path))
    except ValueError:
        raise PodkeeperSparkError(OPTION, f"option {name}={path}: it is not a file with tokens") from None
