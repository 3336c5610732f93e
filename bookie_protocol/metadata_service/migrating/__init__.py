"""Taking part in Apache Pulsar's live migration of metadata from ZooKeeper to Oxia (PIP-454).

`opening.open_zookeeper` opens every service whose URI names ZooKeeper. `gate.MigratingTree` is the tree that everything
above sees: it goes on in Oxia when the migration is complete. `participant` does what Pulsar's coordinator expects of
each process, `flag` reads what the coordinator says, `own_nodes` finds the nodes of a session, and `lines` keeps the
log short.
"""
