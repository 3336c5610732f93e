"""Nobody is accused by one look.

Event loop only.

Source: reference auto-recovery, section 17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pyspark_bookie.jobs.replicas.findings import Finding, clusters, confirmed
from pyspark_bookie.jobs.replicas.inspection import Looker
from pyspark_bookie.jobs.replicas.looks import Look


async def second_look(looker: Looker, looks: Sequence[Look], pause: float) -> list[Look]:
    """What stays of the findings of these looks when each ledger that has some is looked at again, at the bookies in
    question, by metadata read anew. `pause`: seconds before it, in which writes that are under way arrive."""
    doubtful = [look for look in looks if look.findings]
    if doubtful:
        await asyncio.sleep(pause)
    for look in doubtful:
        bookies = {finding.bookie for finding in look.findings if finding.bookie}
        seen: list[Finding] = []
        for first, last in clusters(look.findings) or [(0, -1)]:
            again = await looker.look(look.ledger_id, bookies=bookies, first=first, last=last)
            seen += again.findings
            look.metadata = again.metadata
        look.findings = confirmed(look.findings, list(dict.fromkeys(seen)))
    return list(looks)
