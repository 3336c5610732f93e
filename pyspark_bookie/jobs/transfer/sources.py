"""The sources of the payloads of a transfer.

A source is picklable and is opened where it is used. What it gives is verified: by the digests of a cluster, by the
checksums of files.

Any process; one thread uses an open source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bookie_protocol.archive import Counts
from bookie_protocol.errors import LedgerNotClosed, NoSuchLedger
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import LedgerShape, Manifest
from pyspark_bookie.archive.places import StreamPlace
from pyspark_bookie.archive.reading import read_manifest, read_payloads
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.ledgers import LedgerRow

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient


class LedgerAtSource(Protocol):
    """One ledger. `password`: as the source knows it; None: it does not."""

    shape: LedgerShape
    password: bytes | None

    def payloads(self) -> Iterator[list[bytes]]:
        """All of them, in order. Raises what reading raises."""
        ...

    def expected(self) -> Counts | None:
        """Return the counts that the source recorded, to be compared at the end; None: `payloads` proves itself."""
        ...


class OpenSource(Protocol):
    """Gives ledgers."""

    def ledger(self, ledger_id: int, uuid: str = "") -> LedgerAtSource:
        """`uuid` as in `LedgerRow`. Raises `NoSuchLedger`, `LedgerNotClosed`, `Unauthorized`."""
        ...


class Source(Protocol):
    """A source, in the form that is sent to tasks."""

    def open(self, throttle: Throttle) -> OpenSource: ...


def closed_row(
    ledger_id: int,
    entries: int,
    nbytes: int,
    shape: LedgerShape,
    uuid: str = "",
    *,
    place: StreamPlace | None,
) -> LedgerRow:
    """A ledger that files hold, as arguments choose it."""
    sizes = shape.ensemble_size, shape.write_quorum_size, shape.ack_quorum_size
    custom = dict(shape.custom_metadata)
    return LedgerRow(ledger_id, "CLOSED", entries, nbytes, shape.created_ms, sizes, custom, uuid=uuid, place=place)


# --- a cluster ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterSource:
    """The closed ledgers of a cluster."""

    access: AccessOptions

    def open(self, throttle: Throttle) -> OpenSource:
        return OpenCluster(self.access.client(), self.access.password.read(), throttle)


class OpenCluster:
    """A cluster by a client that is the caller's; `password` None: what each ledger recorded."""

    def __init__(self, client: BlockingClient, password: bytes | None, throttle: Throttle) -> None:
        self._client = client
        self._password = password
        self._throttle = throttle

    def ledger(self, ledger_id: int, uuid: str = "") -> LedgerAtSource:
        return _ClusterLedger(self._client, ledger_id, self._password, self._throttle)


class _ClusterLedger:
    def __init__(self, client: BlockingClient, ledger_id: int, password: bytes | None, throttle: Throttle) -> None:
        metadata = client.metadata(ledger_id)
        if not metadata.is_closed:
            raise LedgerNotClosed(f"ledger {ledger_id} is {metadata.state.value}: only closed ledgers are taken")
        with client.open(ledger_id, password=password):
            pass  # a wrong password is rejected before anything is made at the target
        self.shape = LedgerShape.of(metadata)
        self.password: bytes | None = (metadata.password or b"") if password is None else password
        self._client = client
        self._opening = ledger_id, password
        self._last = metadata.last_entry_id
        self._throttle = throttle

    def payloads(self) -> Iterator[list[bytes]]:
        ledger_id, password = self._opening
        if self._last < 0:
            return
        with self._client.open(ledger_id, password=password) as reader:
            for batch in reader.batches(0, self._last):
                payloads = [entry.payload for entry in batch]
                self._throttle.take(sum(map(len, payloads)))
                yield payloads

    def expected(self) -> Counts | None:
        return None


# --- an archive -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArchiveSource:
    """The archives that `offload` has written."""

    uris: tuple[str, ...]

    def open(self, throttle: Throttle) -> OpenSource:
        return _OpenArchives([Files(each, "--source") for each in self.uris], throttle)


class _OpenArchives:
    def __init__(self, archives: Sequence[Files], throttle: Throttle) -> None:
        self._archives = archives
        self._throttle = throttle

    def ledger(self, ledger_id: int, uuid: str = "") -> LedgerAtSource:
        for files in self._archives:
            if (manifest := read_manifest(files, ledger_id, uuid)) is not None:
                return _ArchivedLedger(files, manifest, self._throttle)
        raise NoSuchLedger(f"no archive has ledger {ledger_id} of uuid {uuid}")


class _ArchivedLedger:
    def __init__(self, files: Files, manifest: Manifest, throttle: Throttle) -> None:
        self.shape = manifest.shape
        self.password: bytes | None = None
        self._files = files
        self._manifest = manifest
        self._throttle = throttle

    def payloads(self) -> Iterator[list[bytes]]:
        manifest = self._manifest
        yield from read_payloads(self._files, manifest.ledger_id, manifest.files, self._throttle)

    def expected(self) -> Counts | None:
        return self._manifest.counts
