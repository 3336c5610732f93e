"""The auditor: one in a cluster finds what lost copies, and marks it for the replication workers.

auditor, term                   candidacy; everything between election and the loss of the vote, each task
                                apart, and what is shown of it
membership                      pure: who is lost, a delay for each bookie, what an operator demanded
lost_bookies, bookie_audit      registrations and the delay, followed; one pass over all metadata that marks as it
                                reads
marking                         marks unless it is marked so already or locked; what was locked is looked at again
withdrawals                     takes marks back when the bookies they name are there again
periodic, sweep                 when a check is due; a pass with second looks and a cursor that another auditor takes
                                up
ledgers_check, replicas_check, placement_check  what is looked at; counting copies against striping
runs                            records of kind `auditor`, and what operators ask for

- A copy is marked missing when its bookie has been registered nowhere for longer than the delay, or when the bookie
  itself said so twice. A bookie that does not answer is counted, and never marked. While no bookie at all is
  registered, nothing is concluded.
- The delay of a bookie begins when it is missed, is stored (`absences`), and goes on with the next auditor, if that
  comes within minutes and has the same time; else it starts again. Writing the delay with its present value, or 0, is
  an audit now, as in the reference; Java's auditors understand the same nodes.
- Checks take turns and delay no other work: the audit of lost bookies is another task, without a throttle.
- A cursor and its counts belong together: what waits for a second look is behind the cursor. Only a complete run writes
  the node that Java's auditors read too.
- A mark is withdrawn under the ledger's lock, only if it tells of absences alone, if every bookie that it names is
  back, and if a check of the ledger finds the copies.
"""
