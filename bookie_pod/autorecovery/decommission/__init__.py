"""Taking a bookie out of the cluster: plan, drain, proof, cookie; and the recovery of lost bookies.

state                        pure: phases, events, `advance`, the record's bytes
store                        the record: compare-and-set, take-over by the last coordinator, `decommission` while
                             under way, `decommissioned` after
coordinator                  what a phase does; faults are waited out and shown
presence                     registration now and in between (`Vigil`), read-only over the bookie's published HTTP
                             endpoint
survey                       what names a bookie: full listing, uncached, complete or an error; and who is about to
                             name it: locks that were held and ledgers IN_RECOVERY when it stopped being a target
drain, moving                ledgers, each under its lock, many at once with a meter; through `FragmentReplicator` and
                             `recover_ledger`
proof, undo                  who may delete the cookie; they meet at the cookie's version

The next step depends on the stored record alone, so any process may go on. A record is written before the first side
effect; a proof belongs to the coordinator that made it, and one that takes over proves again; a record that is DONE
says nothing of the next bookie of its id. The cookie is read before the proof, and only that one is deleted, known by
version and time of creation, in the session in which it was read; an undo changes it first, so of the two one fails.
The proof begins `DrainOptions.settle` after the bookie stopped taking data, when the longest request of a client has
ended that may still name it, and waits for the claims. A bookie that was seen writable since the drain began is drained
again; ours start read-only while there is a record of them (`node.identity.leaving`; where that is unknown they start
as configured and go on asking), until it is undone. Names in `records("decommission")` are bookies that are no targets.
docs/decommission.md tells operators about it.
"""
