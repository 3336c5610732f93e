"""Making ledgers in a cluster out of what another place holds: what `restore`, `copy` and `import` share.

sources.py    where payloads come from: a cluster, an archive (`import` has dumps)
dumps.py      ledgers as single files, as `export` writes them
record.py     pure: how far a ledger is, and the record's bytes, in the target's metadata service
machine.py    one ledger: written, closed, read again
running.py    the arguments that the three jobs share, plan, tasks, publication in a stream, result
"""
