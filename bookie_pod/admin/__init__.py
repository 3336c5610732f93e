"""Apache BookKeeper's admin API, and what Podkeeper adds to it: a room for each subject, with handlers and knowledge.

    bookie.py      state, space, journals, files           sanity.py        a small ledger, written and read back
    gc.py          garbage collection and compaction       settings.py      the configuration in memory
    scrub.py       what is damaged, what was lost          index.py         indexes, rebuilt and compacted
    cluster.py     the other bookies                       ledgers.py       ledgers of the cluster
    facts.py       what an operator decides by             autorecovery.py  auditor, worker, marks
    decommission.py, decommission_jobs.py                  bookies that leave
    ledger_search.py, streams.py                           pages of ledgers and of streams, in turns (`turns.py`)
    load.py        what this bookie does now, in numbers
    cookies.py     what the metadata service keeps of bookies

    rooms.py       all of them, by their types             routes.py        all paths in one table
    client.py      the client that they share              peers.py         how bookies ask each other
    document.py    `docs/http-api.md`

What is answered and taken is in `bookie_protocol.admin_api`; how it is served, in `bookie_pod.server.http`. A new path
is a type and a route there, a handler here, and a row in the `RESOURCES` of its room: schema, checks of parameters and
the page follow from it. Handlers get a room as `context.room(ItsType)`. What blocks is given to the context's workers.

Where the reference answers 500 because an exception escaped its handler (an unknown ledger, a string where a boolean
belongs, no body), the answer here is 400, 404 or 409 with one line that says what is wrong.

Source: docs/internals/bookie-behaviour.md, section 10.
"""
