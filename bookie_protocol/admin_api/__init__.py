"""The HTTP admin API of bookies (docs/http-api.md), for those who serve it and those who ask.

    bodies.py       what JSON and queries are made of; a path and all that it takes and answers; errors that a program
                    acts on (RFC 9457)
    bookie.py, gc.py, integrity.py, autorecovery.py, decommission.py, cluster.py
                    answers, parameters, requests and paths, by subject
    client.py       asks: `AdminClient`, and `BlockingAdmin` for threads

Needs msgspec, and the client aiohttp: the extras `bookie`, `operator` and `spark` bring them.
"""
