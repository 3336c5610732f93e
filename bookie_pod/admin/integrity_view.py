"""The scrubber, the rebuilder of indexes and the data-integrity check as the admin API asks them. Any thread."""

from __future__ import annotations

from collections.abc import Sequence

from bookie_pod.admin.ports import DataCheckState
from bookie_pod.node.integrity.service import Integrity
from bookie_pod.storage.integrity.scrub import ScrubState


class IntegrityView:
    """`IntegrityPort` over what runs."""

    def __init__(self, integrity: Integrity) -> None:
        self._integrity = integrity

    def scrub_state(self) -> ScrubState:
        return self._integrity.scrubber.state()

    def request_scrub(self) -> bool:
        return self._integrity.scrubber.request()

    def rebuild_states(self) -> Sequence[RebuildState]:
        return self._integrity.rebuilder.states()

    def request_rebuild(self, request: RebuildRequest) -> bool:
        return self._integrity.rebuilder.request(request)

    def cancel_rebuild(self) -> bool:
        return self._integrity.rebuilder.cancel()

    def data_check(self) -> DataCheckState | None:
        state = self._integrity.data_check.state
        if not (self._integrity.checks_data or state.needed):
            return None
        return DataCheckState(
            state.needed,
            state.running,
            state.ledgers_checked,
            state.ledgers_failed,
            state.entries_copied,
            state.ledgers_recovered,
            state.last_error,
        )
