"""Taking part in Apache Pulsar's live migration of metadata from ZooKeeper to Oxia (PIP-454).

`opening.open_zookeeper` opens every service whose URI names ZooKeeper. `gate.MigratingTree` is the tree that everything
above sees: it goes on in Oxia when the migration is complete. `participant` does what Pulsar's coordinator expects of
each process. `flag_reader` and `flag` read what the coordinator says, `questions` asks again behind each change of it,
and `proofs` says how long an answer counts. `clusters` and `numbers` look after Oxia, `own_nodes` finds the nodes of a
session, and `lines` keeps the log short.
"""
