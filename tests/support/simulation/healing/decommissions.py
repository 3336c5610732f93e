"""What the records of decommissions say, for those who see the cookies go."""

from __future__ import annotations

from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Phase, decode_record
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.metadata_service.tree import paths


class Decommissions:
    """Those under way; hears of every node."""

    def __init__(self, root: str) -> None:
        self._parent = f"{root}/{paths.PODKEEPER}/{DECOMMISSION}/"
        self.records: dict[str, DecommissionRecord] = {}

    def written(self, path: str, data: bytes) -> Phase | None:
        """The phase that this node tells; None: it is another one."""
        if not path.startswith(self._parent):
            return None
        bookie_id = path.removeprefix(self._parent)
        record = self.records[bookie_id] = decode_record(data, bookie_id)
        return record.phase

    def deleted(self, path: str) -> None:
        if path.startswith(self._parent):
            del self.records[path.removeprefix(self._parent)]

    def forbids_removal(self, bookie_id: str) -> str:
        """Why the cookie must not go; empty: it may."""
        record = self.records.get(bookie_id)
        if record is None:
            return "nobody decommissions it"
        return "" if record.phase is Phase.REMOVING else f"its decommission is {record.phase.value}"
