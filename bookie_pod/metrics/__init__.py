"""Metrics with Apache BookKeeper's names, as Prometheus text.

    registry.py     counters, gauges, summaries; names, labels, the text; process_*
    requests.py     bookkeeper_server_*                 bookie.py      bookie_*
    journal.py      bookie_journal_*                    db_storage.py  bookie_* per ledger directory

Parts that count take one of these objects, or anything with the same methods; they do not know Prometheus.
"""
