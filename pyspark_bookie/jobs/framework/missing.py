"""Ledgers that were asked for and that the cluster does not have: what is told of each.

Driver only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookie_protocol.archive.lookup import archived_ledger
from bookie_protocol.errors import MetadataDamaged
from pyspark_bookie.common.together import bounded
from pyspark_bookie.jobs.framework.findings import ARCHIVED, MISSING, LedgerFinding
from pyspark_bookie.jobs.framework.tasks import task_error

if TYPE_CHECKING:
    from bookie_client import Client


async def missing_findings(client: Client, ledger_ids: Iterable[int]) -> list[LedgerFinding]:
    """ARCHIVED where `offload` has taken the ledger out of the cluster, MISSING where nobody has it. Raises
    `MetadataUnavailable`."""

    async def finding(ledger_id: int) -> LedgerFinding:
        try:
            there = await archived_ledger(client.metadata_service, ledger_id)
        except MetadataDamaged as error:
            told = task_error(error)
            return LedgerFinding(ledger_id, told.code, told.message)
        if there is None:
            return LedgerFinding(ledger_id, MISSING, "the ledger does not exist")
        remedy = f"restore --source {there.target} --keep-ids --ledgers {ledger_id}"
        return LedgerFinding(ledger_id, ARCHIVED, f"it is in the archive, and gone from the bookies: {remedy}")

    return await bounded(ledger_ids, finding)
