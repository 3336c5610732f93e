"""What the HTTP admin API reaches, made of the node's parts.

ports.py               puts them together
this_bookie.py         mode, space, journals, files         sanity.py              the sanity test
collectors.py          garbage collection                   index_compaction.py    location indexes on request
cluster_view.py        the other bookies                    ledgers.py             ledgers of the cluster
settings.py            the configuration in memory          client.py              one client for all of them
"""
