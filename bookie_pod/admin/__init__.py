"""Apache BookKeeper's admin API, and what Podkeeper adds to it.

    ports.py       what the handlers need of the node: small protocols
    bookie.py      state, space, journals, files           gc.py        garbage collection and compaction
    cluster.py     the other bookies                       ledgers.py   ledgers through the metadata service
    settings.py    the configuration                       routes.py    all of them in one table

Where the reference answers 500 because an exception escaped its handler (an unknown ledger, a string where a boolean
belongs, no body), the answer here is 400, 404 or 409 with one line that says what is wrong.

Source: reference bookie behaviour, section 10.
"""
