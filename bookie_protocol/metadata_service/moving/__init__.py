"""Moves the metadata of a whole cluster: to another metadata service, into a backup, and out of one.

One reader gives everything that a cluster keeps, in one order, and one writer makes another place equal to that. So a
move that was interrupted is repeated, and a verification is the same comparison without the writes.

- Everything below the root is carried as it is: ledgers, cookies, marks, settings, records. Sessions
  and what they hold (registrations, locks, votes) are not: they are of processes.
- Nodes get new creations. What outlives a process names a ledger by its token and a bookie by what its cookie says.
- The time at which a ledger was made goes into its metadata where it stood only in the service.
- Positions in the history of a service mean nothing in another one: the record `history` names the place that a cluster
  was moved to, and bookies compare positions only where it is the same. It names the newest restore from a backup too:
  behind that no bookie believes that a ledger is gone.
- A copy has a name, made of what it comes from and at random. The marks of both places hold it, and then `history`: one
  source has one target, and a target that was begun goes on from its own source alone.
- Ledger ids go on behind all that were ever given, also where a source is opened again.

Event loop only.
"""
