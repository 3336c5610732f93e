"""Dumps in a folder: `ledger-7.dump`, `ledger-7.dump.zst` or `ledger-7.dump.gz`.

Invariants
- A dump appears under its name when it is whole; until then it is `_tmp/...`. It is the only one of its ledger then.

One thread at a time for each ledger.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from bookie_protocol.archive import Counts
from bookie_protocol.errors import EntryDamaged, NoSuchLedger
from pyspark_bookie.archive.files import Files
from pyspark_bookie.jobs.dumps.format import DumpHeader, read_header, read_payloads, write_dump

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES: Final = {"none": "", "zstd": ".zst", "gzip": ".gz"}
"""Compressions, and how names of files end."""
_CODECS: Final = {suffix: None if name == "none" else name for name, suffix in SUFFIXES.items()}
_NAME: Final = re.compile(r"ledger-(\d+)\.dump(\.zst|\.gz)?")


class Dumps:
    """The dumps in a folder."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def names(self) -> dict[int, str]:
        """The dumps there are, by ledger."""
        found: dict[int, str] = {}
        for listed in self._files.list(""):
            match = _NAME.fullmatch(listed.path)
            if match is not None:
                found[int(match[1])] = listed.path
        return found

    def find(self, ledger_id: int) -> str | None:
        """The name of a ledger's dump; None: there is none."""
        for suffix in SUFFIXES.values():
            name = f"ledger-{ledger_id}.dump{suffix}"
            if self._files.size(name) is not None:
                return name
        return None

    def header(self, name: str) -> DumpHeader:
        """Raises `EntryDamaged`, `NoSuchLedger` (there is no such file)."""
        with self._opened(name) as stream:
            return read_header(stream, name)

    def payloads(self, name: str) -> Iterator[list[bytes]]:
        """Raises as `format.read_payloads` and `header`."""
        with self._opened(name) as stream:
            yield from read_payloads(stream, read_header(stream, name), name)

    def count(self, name: str) -> int:
        """Read a dump to its end; returns how many entries it has. Raises as `payloads`."""
        return sum(len(payloads) for payloads in self.payloads(name))

    def write(self, header: DumpHeader, batches: Iterable[list[bytes]], compression: str) -> tuple[Counts, int]:
        """Write a dump, read it again and give it its name; returns its counts and the size of the file."""
        import pyarrow as pa

        suffix = SUFFIXES[compression]
        name = f"ledger-{header.ledger_id}.dump{suffix}"
        folder = f"_tmp/{uuid.uuid4().hex}"
        self._files.make_folder(folder)
        temporary = f"{folder}/{name}"
        codec = _CODECS[suffix]
        try:
            with self._files.system.open_output_stream(self._files.path(temporary), compression=None) as raw:
                if codec is None:
                    counts = write_dump(raw, header, batches)
                else:
                    with pa.CompressedOutputStream(raw, codec) as stream:
                        counts = write_dump(stream, header, batches)
            self.count(temporary)
            self._files.move(temporary, name)
            for other in SUFFIXES.values():  # what it replaces, in another compression
                if other != suffix:
                    self._files.delete(f"ledger-{header.ledger_id}.dump{other}")
        finally:
            self._files.delete_folder(folder)
        return counts, self._files.size(name) or 0

    @contextmanager
    def _opened(self, name: str) -> Iterator[pa.NativeFile]:
        import pyarrow as pa

        found = _NAME.fullmatch(name.rpartition("/")[2])
        codec = _CODECS[(found[2] if found else None) or ""]
        try:
            with self._files.system.open_input_stream(self._files.path(name), compression=None) as raw:
                if codec is None:
                    yield raw
                else:
                    with pa.CompressedInputStream(raw, codec) as stream:
                        yield stream
        except FileNotFoundError as error:
            raise NoSuchLedger(f"there is no dump {name}") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise EntryDamaged(f"{name} cannot be read: {error}") from error
