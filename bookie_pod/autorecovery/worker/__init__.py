"""The replication worker: restores what auditors marked. Any number may run in a cluster.

worker.py           takes marked ledgers, several at a time, leaves alone those that failed, and stops in an orderly way
ledger_repair.py    what is done to one ledger, and which findings count, given what its mark names
progress.py         what people are shown

- A lock is held from the first look until the mark is gone or the waiting is over: the grace of an open ledger, the
  back-off of one that failed. Waiting ledgers take no place among those at work. A lock whose owner does not know of it
  (a cancelled call, a lost answer) is removed in the background.
- A bookie that is registered nowhere is replaced only if the mark names it; what went a moment ago is the auditor's
  business. A copy that a bookie itself denies or gives damaged is restored whichever bookie the mark names. A mark goes
  when each finding in it was answered by a look (`bookie_client.healing`).
- What a check found some seconds ago is looked at again before its fragment is copied: copies of a bookie that is
  back stay where they are.
- New copies are named in the session that holds the ledger's lock or not at all, and listed once more when they are
  named; if some were collected meanwhile the exchange is taken back. A target that is gone when it is named is marked:
  its audit may have come before. The same holds for all that copy: workers, drains, `recover`, the Spark job.
- Denials of a bookie that is known to have lost entries end no ledger (`replication.check`, the one way to close a
  ledger for healing).
- A mark that is there already is renewed where its ledger is locked, so that it outlives the round of a worker that
  looked too early. A bookie counts as audited only if no ledger was skipped for it.
- Copying has one throttle and one budget of bytes for all ledgers of a process. Placement keys of the configuration
  count here, in the gateway and in commands (`bookie_pod.client_options`).
- In a bookie nothing of this ends the bookie, and a complaint leaves `/healthz` at 200; in a process of its own it is
  503. A session that does not come back although new ones can be had ends that process with the exit code of an
  expired one.
- docs/auto-recovery.md tells operators about it.
"""
