"""The owner of a ledger, and whether the owner still lists it.

| custom metadata | the owner | when it is an orphan |
|---|---|---|
| `podkeeper/stream` | that stream | no manifest of any stream lists it, neither as a ledger nor as retired |
| `application=pulsar`, `pulsar/managed-ledger` | that topic | Pulsar has no such topic, or the topic does not list it |
| another `application` | that application | unknown |
| none | unknown | unknown |

Invariants
- ORPHAN is said only after the owner's own list was read, or the place where the list would be was seen to be empty.
  What could not be read, such as the manifest of a stream that is damaged, makes its ledgers UNKNOWN.
- Any stream may list a ledger, whatever that says of itself, because older versions published such. All lists are read
  after the first ledger's metadata, and once for each piece of work: a stream lists a new ledger only if that names it,
  and what names none is changed then, so that it is not in the version that was judged. The stream that it names is
  changed, and its list is read again (`forget`), before a deletion: a client that was about to list the ledger fails.
- The ledgers of a transfer, finished or not, are its own until the stream has them: they are in the transfer's record.
- A ledger that was not made for a stream, and was given to one later, is not an orphan when that does not list it.

Event loop only.

Source: docs/internals/spark.md, section 3; docs/internals/client-protocol.md, section 25.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from bookie_client.client import Client
from bookie_client.streams.managed_ledgers import managed_ledger
from bookie_client.streams.model import APPLICATION, STREAM_KEY
from bookie_client.streams.store import ManifestStore
from bookie_protocol.errors import BadRequest, MetadataError, MetadataUnavailable, NoSuchStream, NotThere
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.managed_ledgers import ROOT
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.ledgers import text_of
from pyspark_bookie.jobs.transfer.record import KIND as TRANSFER
from pyspark_bookie.jobs.transfer.record import TRANSFER_KEY, TransferRecord

APPLICATION_KEY: Final = "application"
SINK_KEY: Final = "podkeeper/sink"
PULSAR: Final = "pulsar"
MANAGED_LEDGER_KEY: Final = "pulsar/managed-ledger"
CURSOR_KEY: Final = "pulsar/cursor"
COMPONENT_KEY: Final = "component"
MANAGED_LEDGER_COMPONENT: Final = "managed-ledger"
MAX_REMEMBERED: Final = 200
"""Owners whose lists are kept."""
_Read = Callable[[str], Awaitable[frozenset[int]]]


class OwnerKind(Enum):
    """The kinds of owners. Reports contain the value."""

    STREAM = "stream"
    MANAGED_LEDGER = "managed ledger"
    APPLICATION = "application"
    NONE = "none"


class Standing(Enum):
    """The standing of a ledger. OWNED: the owner lists it. ORPHAN: it does not, or is gone. UNKNOWN: neither is
    certain."""

    OWNED = "owned"
    ORPHAN = "orphan"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner of a ledger.

    `name`: of the stream, topic or application. `by_sink`: an attempt of Spark's sink wrote it. `is_gone`: the owner no
    longer exists; its ledgers may have been kept on purpose.
    """

    kind: OwnerKind
    name: str
    standing: Standing
    detail: str = ""
    by_sink: bool = False
    is_gone: bool = False


class Owners:
    """Asks for one client. `managed_ledger_root`: where Pulsar keeps its lists. `among`: only these ledgers are asked
    for; None: any."""

    def __init__(
        self, client: Client, managed_ledger_root: str = ROOT, *, among: Collection[int] | None = None
    ) -> None:
        self._client = client
        self._root = managed_ledger_root
        self._store = ManifestStore(client.metadata_service)
        self._streams: OrderedDict[str, frozenset[int] | str | None] = OrderedDict()
        self._topics: OrderedDict[str, frozenset[int] | str | None] = OrderedDict()
        self._has_topics: bool | None = None
        self._among = among
        self._listing: Mapping[int, frozenset[str]] | str | None = None
        self._transfers: dict[str, frozenset[str]] = {}

    async def forget(self, metadata: LedgerMetadata) -> None:
        """Read the owners' lists again from now on. A client that was about to list this ledger in its stream has
        to look again. Raises `MetadataError`."""
        stream = text_of(metadata.custom_metadata.get(STREAM_KEY))
        if stream is not None:
            with suppress(NoSuchStream):  # nor can anything be added to one that is being deleted
                await self._store.update(stream, lambda each: replace(each, epoch=each.epoch + 1))
        self._streams.clear()
        self._topics.clear()

    async def of(self, metadata: LedgerMetadata) -> Ownership:
        """Raises `MetadataUnavailable`."""
        custom = metadata.custom_metadata
        stream = text_of(custom.get(STREAM_KEY))
        if stream is not None:
            return await self._streams_own(metadata, stream)
        application = text_of(custom.get(APPLICATION_KEY))
        topic = text_of(custom.get(MANAGED_LEDGER_KEY))
        if application == PULSAR and topic is not None:
            return await self._pulsars(metadata, topic)
        if application is not None:
            return Ownership(OwnerKind.APPLICATION, application, Standing.UNKNOWN, "it keeps its lists elsewhere")
        return Ownership(OwnerKind.NONE, "", Standing.UNKNOWN, "its metadata name no owner")

    # --- inside -----------------------------------------------------------------------------------------------

    async def _streams_own(self, metadata: LedgerMetadata, stream: str) -> Ownership:
        ledger_id, custom = metadata.ledger_id, metadata.custom_metadata
        listed = await self._listed(self._streams, stream, self._of_stream)
        judged = _judged(OwnerKind.STREAM, stream, ledger_id, listed, by_sink=SINK_KEY in custom)
        if judged.standing is not Standing.ORPHAN:
            return judged
        others = await self._others()
        if isinstance(others, str):
            return replace(judged, standing=Standing.UNKNOWN, detail=others, is_gone=False)
        if names := others.get(ledger_id):
            return replace(judged, name=min(names), standing=Standing.OWNED, detail="", is_gone=False)
        if text_of(custom.get(APPLICATION_KEY)) != APPLICATION:
            detail = f"{judged.detail}, and it was not made for a stream"
            return replace(judged, standing=Standing.UNKNOWN, detail=detail, is_gone=False)
        transfer, _, uuid = (text_of(custom.get(TRANSFER_KEY)) or "").rpartition(":")
        if transfer and uuid in await self._uuids_of(transfer):
            detail = f"the transfer {transfer} has not added it to the stream"
            return replace(judged, standing=Standing.OWNED, detail=detail, is_gone=False)
        return judged

    async def _others(self) -> Mapping[int, frozenset[str]] | str:
        """Return the streams that list ledgers; a text: why they are unknown."""
        if self._listing is None:
            try:
                self._listing = await self._store.listing(self._among)
            except MetadataUnavailable:
                raise
            except MetadataError as error:
                self._listing = str(error)
        return self._listing

    async def _uuids_of(self, transfer: str) -> frozenset[str]:
        """Return the ledgers that a transfer has made or is making."""
        if transfer not in self._transfers:
            records = self._client.metadata_service.records(TRANSFER)
            names = [each for each in await records.names() if each.rpartition(".")[0] == transfer]

            async def uuid_of(name: str) -> str:
                return TransferRecord.decode((await records.read(name)).value).uuid

            self._transfers[transfer] = frozenset(await bounded(names, uuid_of))
        return self._transfers[transfer]

    async def _pulsars(self, metadata: LedgerMetadata, topic: str) -> Ownership:
        if not await self._knows_topics():
            why = f"there are no managed ledgers below {self._root}"
            return Ownership(OwnerKind.MANAGED_LEDGER, topic, Standing.UNKNOWN, why)
        listed = await self._listed(self._topics, topic, self._of_topic)
        custom = metadata.custom_metadata
        component = text_of(custom.get(COMPONENT_KEY)) or MANAGED_LEDGER_COMPONENT
        if isinstance(listed, frozenset) and (CURSOR_KEY in custom or component != MANAGED_LEDGER_COMPONENT):
            what = "cursor" if CURSOR_KEY in custom else component
            why = f"{what} of a topic that exists"
            return Ownership(OwnerKind.MANAGED_LEDGER, topic, Standing.OWNED, why)
        return _judged(OwnerKind.MANAGED_LEDGER, topic, metadata.ledger_id, listed)

    async def _listed(
        self, known: OrderedDict[str, frozenset[int] | str | None], name: str, read: _Read
    ) -> frozenset[int] | str | None:
        """Return the ids that the owner lists; None: there is no such owner; a text: why they are unknown."""
        if name in known:
            known.move_to_end(name)
            return known[name]
        found: frozenset[int] | str | None
        try:
            found = await read(name)
        except MetadataUnavailable:
            raise
        except NotThere:
            found = None
        except (MetadataError, BadRequest) as error:
            found = str(error)
        known[name] = found
        while len(known) > MAX_REMEMBERED:
            known.popitem(last=False)
        return found

    async def _of_stream(self, name: str) -> frozenset[int]:
        # Also of one that is being deleted: the deletion finishes with its ledgers.
        return (await self._store.read(name, even_deleting=True)).manifest.owned_ids

    async def _of_topic(self, name: str) -> frozenset[int]:
        found = await managed_ledger(self._client, name, root=self._root)
        return frozenset(ledger.ledger_id for ledger in found.manifest.ledgers)

    async def _knows_topics(self) -> bool:
        if self._has_topics is None:
            nodes = self._client.metadata_service.managed_ledgers(self._root)
            self._has_topics = bool(await nodes.children(""))
        return self._has_topics


def _judged(
    kind: OwnerKind, name: str, ledger_id: int, listed: frozenset[int] | str | None, *, by_sink: bool = False
) -> Ownership:
    if isinstance(listed, str):
        return Ownership(kind, name, Standing.UNKNOWN, listed, by_sink)
    if listed is None:
        return Ownership(kind, name, Standing.ORPHAN, f"there is no {kind.value} {name}", by_sink, is_gone=True)
    if ledger_id in listed:
        return Ownership(kind, name, Standing.OWNED, "", by_sink)
    return Ownership(kind, name, Standing.ORPHAN, f"{kind.value} {name} does not list it", by_sink)
