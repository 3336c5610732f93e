"""Facts by which an operator decides: the state of the cluster, and whether a bookie is needed.

Invariants
- Every fact is read from the metadata service for this very answer. What cannot be read is an error of the whole
  answer: no number stands for "not known".
- Two listings at once share nothing; at most `MAX_LISTINGS` run, and others wait for their turn. Callers who run the
  cluster do not wait for those of viewers.
- Memory: the ids of the bookies; of ledgers only counts, but for those that name the bookie which a proof is about.

Event loop only.

Sources: docs/internals/auto-recovery.md, sections 8 and 13; docs/internals/metadata-layout.md, sections 4 to 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from typing import Final

from bookie_pod.admin.bookie_ids import LISTING_S, accepted_losses, checked_id
from bookie_pod.config.model import BookieConfig
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_pod.server.http.api.call import Call, Json, Reply
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource
from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api import decommission as decommission_api
from bookie_protocol.admin_api.cluster import ClusterFacts
from bookie_protocol.admin_api.decommission import DrainProof, ProofQuery
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService

MAX_LISTINGS: Final = 2
_SHOWN: Final = 20
_LOCKS_SECONDS: Final = 5.0
"""Seconds to wait for the re-replications of others; an operator asks again."""
_STATE_S: Final = 120.0
"""Seconds for what counts every mark."""
_UNKNOWN: Final = Answer("The state is unknown now; the problem says why.", 503)


class FactsView:
    """The code of auto-recovery is loaded by the first who needs it."""

    def __init__(self, service: MetadataService, config: BookieConfig) -> None:
        self._service = service
        self._config = config
        self._places = {runs_cluster: asyncio.Semaphore(MAX_LISTINGS) for runs_cluster in (False, True)}

    async def cluster(self) -> ClusterFacts:
        from bookie_pod.autorecovery.auditor.replicas_check import NO_COPY
        from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check

        if (state := self._service.session.state) is not SessionState.CONNECTED:  # it would only wait
            raise MetadataUnavailable(f"the session with the metadata service is {state.value}")
        marks, records = self._service.under_replication, AuditRecords(self._service)
        # Records are read in step with all writes before (`sync`), and so is what this session reads after them.
        audit = (await records.read(Check.BOOKIES)).last
        replicas = (await records.read(Check.REPLICAS)).last
        returned, term = await records.returned(), await self._service.auditor_election.current_term()
        is_claimed = term is not None and returned.is_claimed(term.bookie_id, term.name)
        instance_id = await self._instance_id()
        writable, read_only, cookies = [
            sorted((await self._service.bookies.list(group)).bookies)
            for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY, BookieGroup.ALL)
        ]
        delay = await marks.lost_bookie_recovery_delay()
        return ClusterFacts(
            instance_id=instance_id,
            writable=writable,
            read_only=read_only,
            cookies=cookies,
            under_replicated=await self._service.under_replication.count(),
            auditor=term.bookie_id if term is not None else None,
            last_audit_ms=audit.started_ms if audit is not None else None,
            autorecovery_enabled=await marks.is_enabled(),
            lost_bookie_recovery_delay_seconds=(
                delay if delay is not None else self._config.auto_recovery.lost_bookie_recovery_delay_s
            ),
            unrecoverable=replicas.counts.get(NO_COPY, 0) if replicas is not None else None,
            unchecked=sorted(returned.waiting) if is_claimed else None,
        )

    async def proof(
        self, bookie_id: str, accepted_losses: AbstractSet[int] = frozenset(), caller: Caller = NOBODY
    ) -> DrainProof:
        from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check
        from bookie_pod.autorecovery.decommission.presence import Presence, presence_of
        from bookie_pod.autorecovery.decommission.store import now_ms
        from bookie_pod.autorecovery.decommission.survey import survey_unclaimed

        async with self._places[caller.runs_cluster]:
            begun_ms = now_ms()
            audit = (await AuditRecords(self._service).read(Check.BOOKIES)).last  # first: see above
            instance_id = await self._instance_id()
            before = await presence_of(self._service, bookie_id)
            found, locked = await survey_unclaimed(self._service, bookie_id, _LOCKS_SECONDS)
            after = await presence_of(self._service, bookie_id)
        claims = (locked | found.in_recovery) - accepted_losses
        return DrainProof(
            bookie_id=bookie_id,
            ledgers=len(found.ledgers.keys() - accepted_losses),
            open_ledgers=sum(
                not ledger.is_closed and ledger.ledger_id not in accepted_losses for ledger in found.ledgers.values()
            ),
            marks=len(found.marks - accepted_losses),
            accepted_losses=len(found.left() & accepted_losses),
            first_ledgers=nsmallest(_SHOWN, found.left(accepted_losses)),
            claims=len(claims),
            first_claims=nsmallest(_SHOWN, claims),
            registered=before is not Presence.ABSENT or after is not Presence.ABSENT,
            auditor=await self._service.auditor_election.current_auditor(),
            last_audit_ms=audit.started_ms if audit is not None else None,
            instance_id=instance_id,
            ledgers_seen=found.ledgers_seen,
            begun_ms=begun_ms,
        )

    async def _instance_id(self) -> str:
        found = await self._service.cluster.instance_id()
        if not found:
            raise MetadataDamaged("the cluster has no instance id, which identifies it")
        return found


async def _cluster(context: Context, call: Call) -> Reply:
    return Json(await context.room(FactsView).cluster())


async def _proof(context: Context, call: Call) -> Reply:
    return await _prove(context, call.asked(ProofQuery), call.caller)


async def _long_proof(context: Context, call: Call) -> Reply:
    return await _prove(context, call.read(ProofQuery), call.caller)


async def _prove(context: Context, asked: ProofQuery, caller: Caller) -> Reply:
    bookie_id = checked_id(asked.bookie_id, "bookie_id")
    return Json(await context.room(FactsView).proof(bookie_id, await accepted_losses(asked.accept_loss), caller))


RESOURCES: Final = (
    Resource(
        (
            Operation(
                cluster_api.STATE,
                Role.VIEWER,
                "The cluster as the metadata service knows it, read now",
                _cluster,
                "The facts.",
                (_UNKNOWN,),
                timeout_s=_STATE_S,
            ),
        ),
    ),
    Resource(
        (
            Operation(
                decommission_api.PROOF,
                Role.VIEWER,
                "Whether any ledger, or any mark of an under-replicated one, names a bookie: a full listing made now",
                _proof,
                "What was found.",
                (_UNKNOWN,),
                timeout_s=LISTING_S,
            ),
            Operation(
                decommission_api.LONG_PROOF,
                Role.VIEWER,
                "The same, for more accepted losses than a request line holds",
                _long_proof,
                "What was found.",
                (_UNKNOWN,),
                timeout_s=LISTING_S,
            ),
        ),
    ),
)
