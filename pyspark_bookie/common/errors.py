"""The one error that users of the Spark package see, and the one by which a decoder refuses an entry.

Spark keeps neither class nor attributes of an exception that Python raised, only its text. So the text begins with a
code that scripts can look for, and names the ledger and the remedy:

    [BOOKIE_NO_SUCH_LEDGER] ledger 7 does not exist

The code is the name of the error in `bookie_protocol.errors`, or one of the package's own: `OPTION`, `SCHEMA`,
`DATA_LOSS`, `DECODE`, `JAVA`.

Pure; any process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bookie_protocol.errors import MetadataUnavailable, PodkeeperError, Unauthorized, public_kind

OPTION: Final = "OPTION"
SCHEMA: Final = "SCHEMA"
DATA_LOSS: Final = "DATA_LOSS"
DECODE: Final = "DECODE"
JAVA: Final = "JAVA"

_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_REMEDIES: Final[dict[type[PodkeeperError], str]] = {
    Unauthorized: "set passwordFile, or recordedPasswords=true to use the one in the ledger's metadata",
    MetadataUnavailable: "does the metadata service run, and is metadataServiceUri right?",
}


class PodkeeperSparkError(Exception):
    """`code` without its prefix; `str()` has both."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"[BOOKIE_{code}] {message}")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[type[PodkeeperSparkError], tuple[str, str]]:
        return type(self), (self.code, self.message)


class UndecodableEntry(ValueError):
    """The entry is not of the format that was asked for, or of a kind that cannot be decoded here; the text says
    which."""


def code_of(error: PodkeeperError) -> str:
    """`NoSuchLedger` is NO_SUCH_LEDGER."""
    return _WORD_START.sub("_", public_kind(error).__name__).upper()


def named(text: str, what: str) -> str:
    """`text` with `what` in front, unless it names it."""
    return text if not what or re.search(rf"\b{re.escape(what)}\b", text) else f"{what}: {text}"


def spark_error(error: PodkeeperError, what: str = "") -> PodkeeperSparkError:
    """`error` as users see it; `what`, such as "ledger 7", goes in front of a message that does not name it."""
    text = named(str(error), what)
    for kind, remedy in _REMEDIES.items():
        if isinstance(error, kind):
            text = f"{text}; {remedy}"
    return PodkeeperSparkError(code_of(error), text)


@contextmanager
def told(what: str = "") -> Iterator[None]:
    """Errors of the client that leave the block leave it as `PodkeeperSparkError`, without the chain of causes, which
    Spark would print in full."""
    try:
        yield
    except PodkeeperError as error:
        raise spark_error(error, what) from None
