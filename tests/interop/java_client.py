"""The stock Java client, driven from Python: one JVM, one call after the other.

Any thread may call a `JavaClient`, one at a time. Whoever starts one stops it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bookie_protocol.digest import DigestType
from tests.interop.java_agent import JavaAgent
from tests.interop.java_programs import command

PASSWORD = b"interop"


class JavaClientError(Exception):
    """The Java client refused; `code` is that of its BKException."""

    def __init__(self, code: int) -> None:
        super().__init__(f"BKException {code}")
        self.code = code


def payload(ledger_id: int, entry_id: int) -> bytes:
    """What an entry holds, at both sides: java.util.Random from the ids, size from the entry id."""
    mask = (1 << 48) - 1
    seed = (ledger_id * 1_000_003 + entry_id ^ 0x5DEECE66D) & mask
    size = entry_id * 397 % 2048
    out = bytearray()
    while len(out) < size:
        seed = seed * 0x5DEECE66D + 0xB & mask
        out += (seed >> 16).to_bytes(4, "little")
    return bytes(out[:size])


def payloads(ledger_id: int, count: int) -> list[bytes]:
    """Of entries 0 to `count` - 1."""
    return [payload(ledger_id, entry_id) for entry_id in range(count)]


class JavaClient(JavaAgent):
    """Clients of both protocols for one cluster; V3 unless a call says otherwise."""

    def __init__(self, class_path: str, metadata_uri: str, log: Path, *, launcher: Sequence[str] = ()) -> None:
        """`launcher`: as in `command`."""
        super().__init__(command(class_path, "dev.podkeeper.interop.ClientAgent", metadata_uri, launcher=launcher), log)

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Raises `JavaClientError`."""
        answer = super().call(do, **arguments)
        if "code" in answer:
            raise JavaClientError(answer["code"])
        return answer

    def create(
        self,
        quorums: tuple[int, int, int],
        *,
        digest: DigestType = DigestType.CRC32C,
        metadata: Mapping[str, bytes] | None = None,
        **options: Any,
    ) -> int:
        """`options`: protocol, deferred, advanced, ledger (with advanced)."""
        ensemble, write_quorum, ack_quorum = quorums
        answer = self.call(
            "create",
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest.name,
            password=PASSWORD.decode(),
            metadata={name: base64.b64encode(value).decode() for name, value in (metadata or {}).items()},
            **options,
        )
        return int(answer["ledger"])

    def append(self, ledger: int, count: int) -> None:
        self.call("append", ledger=ledger, count=count)

    def write(self, ledger: int, entries: Sequence[int]) -> None:
        """Of an advanced writer."""
        self.call("write", ledger=ledger, entries=list(entries))

    def close(self, ledger: int) -> None:
        self.call("close", ledger=ledger)

    def open(
        self,
        ledger: int,
        *,
        recover: bool = False,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = PASSWORD,
        **options: Any,
    ) -> dict[str, Any]:
        """lac, length, closed."""
        return self.call(
            "open", ledger=ledger, recover=recover, digest=digest.name, password=password.decode(), **options
        )

    def read(self, ledger: int, first: int, last: int, how: str = "single") -> list[bytes]:
        """`how`: single, batch, unconfirmed."""
        answer = self.call("read", ledger=ledger, first=first, last=last, how=how)
        return [base64.b64decode(each) for each in answer["payloads"]]

    def metadata(self, ledger: int) -> dict[str, Any]:
        """state, ensemble, write_quorum, ack_quorum, last_entry, length, digest, format, metadata, ensembles."""
        answer = self.call("metadata", ledger=ledger)
        answer["metadata"] = {name: base64.b64decode(value) for name, value in answer["metadata"].items()}
        answer["ensembles"] = {int(first): tuple(bookies) for first, bookies in answer["ensembles"].items()}
        return answer
