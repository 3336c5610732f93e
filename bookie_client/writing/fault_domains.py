"""Acknowledgements that have to come from enough fault domains (racks, regions, zones).

An add counts as complete only when the bookies that acknowledged it, at least Qa of them, lie in as many domains as the
placement policy demands of a write set. Everything else is as in `AddState`: this state holds the last acknowledgement
back until the domains suffice, so that nothing else has to know of the rule.

Invariants
- `PendingAdd.acks` reaches Qa exactly when the acknowledgements number Qa and suffice.
- What suffices is asked again when locations changed; an add that was delivered stays so.

Recovery does not go by this rule: it must not wait for a rack that is down.

Event loop only.

Source: docs/internals/client-protocol.md, section 16.6 (`enforceMinNumFaultDomainsForWrite`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from bookie_client.connection.request import BookieRequest
from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.placement.policy import AcknowledgementRule
from bookie_client.placement.topology import Topology
from bookie_client.writing.add_state import AddState
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import NotEnoughBookies

Suffices = Callable[[frozenset[str]], bool]
_MAX_KNOWN = 4096


class SpreadAddState(AddState):
    """`suffices`: whether acknowledgements of exactly these bookies lie in enough domains."""

    def __init__(self, *arguments: Any, suffices: Suffices, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._suffices = suffices

    def can_do_without(self, positions: Collection[int], ensemble: tuple[str, ...]) -> bool:
        write_sets = map(self.quorums.write_set, range(self.quorums.ensemble))
        return super().can_do_without(positions, ensemble) and all(
            self._suffices(frozenset(ensemble[p] for p in write_set if p not in positions)) for write_set in write_sets
        )

    def acknowledged(self, add: PendingAdd, bookie: str) -> bool:
        before = add.acked
        super().acknowledged(add, bookie)
        if add.acked == before:
            return False
        self._count(add)
        return add.acks >= self._ack and add.entry_id == self._next and self._ensemble.changing is None

    def acknowledged_run(self, add: PendingAdd, run: Sequence[BookieRequest], at: int, bookie: str) -> int:
        # Each by itself: which bookies acknowledged it decides, not how many.
        self.acknowledged(add, bookie)
        return at + 1

    def _move_pending(self, ensemble: tuple[str, ...]) -> list[tuple[PendingAdd, int]]:
        resend = super()._move_pending(ensemble)
        for add in self._pending:
            self._count(add)
        return resend

    def _count(self, add: PendingAdd) -> None:
        add.acks = add.acked.bit_count()
        if add.acks >= self._ack:
            bookies = frozenset(bookie for p, bookie in enumerate(add.ensemble) if add.acked >> p & 1)
            if not self._suffices(bookies):
                add.acks = self._ack - 1


class DomainCheck:
    """Asks the placement policy, and remembers its answers while locations stay."""

    def __init__(self, context: ClientContext, quorums: Quorums, rule: AcknowledgementRule) -> None:
        self._context = context
        self._quorums = quorums
        self._rule = rule
        self._topology: Topology | None = None
        self._known: dict[frozenset[str], bool] = {}

    def __call__(self, bookies: frozenset[str]) -> bool:
        topology = self._context.topology
        if topology is not self._topology or len(self._known) > _MAX_KNOWN:
            self._topology = topology
            self._known.clear()
        answer = self._known.get(bookies)
        if answer is None:
            answer = self._known[bookies] = self._rule.acknowledgements_suffice(bookies, self._quorums, topology)
        return answer


def make_add_state(
    context: ClientContext, ledger_id: int, quorums: Quorums, ensemble: tuple[str, ...], **options: Any
) -> AddState:
    """The state of a writer with the client's options; `options` are further ones of `AddState`."""
    settings = context.options
    options |= {
        "delay_ensemble_change": settings.delay_ensemble_change,
        "max_ensemble_changes": settings.max_ensemble_changes,
    }
    rule = context.placement
    if settings.enforce_fault_domains and isinstance(rule, AcknowledgementRule):
        return SpreadAddState(ledger_id, quorums, ensemble, suffices=DomainCheck(context, quorums, rule), **options)
    return AddState(ledger_id, quorums, ensemble, **options)


def check_domains(context: ClientContext, quorums: Quorums, ensemble: tuple[str, ...], topology: Topology) -> None:
    """Raises `NotEnoughBookies` for an ensemble some of whose write sets could never acknowledge an add."""
    rule = context.placement
    if not (context.options.enforce_fault_domains and isinstance(rule, AcknowledgementRule)):
        return
    for entry_id in range(quorums.ensemble):
        write_set = frozenset(ensemble[position] for position in quorums.write_set(entry_id))
        if not rule.acknowledgements_suffice(write_set, quorums, topology):
            raise NotEnoughBookies(
                f"bookies {', '.join(sorted(write_set))} lie in too few fault domains for an add to be acknowledged"
                f" (enforce_fault_domains; {context.placement.rule})"
            )
