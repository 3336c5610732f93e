"""What happened to each life of an id, and what must hold.

`checks` judges each life by itself, as any ledger. Beyond that:

    I1 one life    a write to a ledger never changes which ledger it is: its creation token and its password stay
"""

from __future__ import annotations

from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree import paths
from tests.support.simulation import checks
from tests.support.simulation.history import History, LedgerHistory
from tests.support.simulation.nodes import NodeRecord


class LifeJudge:
    """As `checks`. `own_passwords`: bookies that have not collected a life serve its writers and recoverers still, and
    what they tell those says nothing of the next life."""

    def __init__(self, own_passwords: bool) -> None:
        self._own_passwords = own_passwords

    def metadata_changed(
        self, history: History, ledger: LedgerHistory, host: str, before: LedgerMetadata, after: LedgerMetadata
    ) -> None:
        if (before.creation_token, before.password) != (after.creation_token, after.password):
            history.violated("I1 one life", ledger, f"{host} stored the metadata of another life")
        checks.metadata_changed(history, ledger, host, before, after)

    def entry_stored(
        self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int, entry: bytes
    ) -> None:
        checks.entry_stored(history, ledger, bookie_id, entry_id, entry)

    def written_blindly(self, history: History, ledger: LedgerHistory, host: str) -> None:
        checks.written_blindly(history, ledger, host)

    def stored_by_writer(self, history: History, ledger: LedgerHistory, bookie_id: str, entry_id: int) -> None:
        if not self._own_passwords:
            checks.stored_by_writer(history, ledger, bookie_id, entry_id)

    def fenced(self, history: History, ledger: LedgerHistory, bookie_id: str) -> None:
        if not self._own_passwords:
            checks.fenced(history, ledger, bookie_id)


class LifeHistory(History):
    """`ledgers` are the living ones. A life that was deleted goes to `past`; nothing is promised of it any more."""

    past: dict[int, list[LedgerHistory]]

    def deleted(self, path: str, record: NodeRecord) -> int | None:
        """A node went: the id of its ledger, if it was one's."""
        directory, _, name = path.removeprefix(self._root).rpartition("/")
        ledger_id = paths.leaf_ledger_id(directory, name) if path.startswith(self._root) else None
        if ledger_id is None or ledger_id not in self.ledgers:
            return None
        self.past.setdefault(ledger_id, []).append(self.ledgers.pop(ledger_id))
        self.count("deleted")
        return ledger_id

    def is_living(self, ledger: LedgerHistory) -> bool:
        return self.ledgers.get(ledger.ledger_id) is ledger

    def life(self, metadata: LedgerMetadata) -> LedgerHistory | None:
        """The life with these metadata, living or not: the last one, because a creation whose answer was lost is made
        again, with its token, if the ledger was deleted meanwhile."""
        lives = [*self.past.get(metadata.ledger_id, ()), *filter(None, [self.ledgers.get(metadata.ledger_id)])]
        same = [each for each in lives if each.metadata.creation_token == metadata.creation_token]
        return same[-1] if same else None

    def stored(self, bookie_id: str, ledger_id: int, entry_id: int, entry: bytes, *, recovery: bool = False) -> None:
        """As the base; an entry of a past life is for a bookie that has not collected it."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and not any(_is_of(each, entry_id, entry) for each in self.past.get(ledger_id, ())):
            super().stored(bookie_id, ledger_id, entry_id, entry, recovery=recovery)


def _is_of(ledger: LedgerHistory, entry_id: int, entry: bytes) -> bool:
    payload = ledger.payloads.get(entry_id)
    return payload is not None and entry.endswith(payload)
