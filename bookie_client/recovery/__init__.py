"""Recovery: fencing, finding the end of a ledger that its writer did not close, storing it.

recovery.recover_ledger  marks, finds the end (fences, `forward_read`, stores again), closes by
                         compare-and-set or adopts another's end
forward_read.EntryVote   pure: found, not found (Qw - Qa + 1 denials behind a fence), or unknown

A recovery replaces bookies for itself and stores the new segments together with the end. The entries that it stores
again carry the LAC that fencing found: until it is closed, the writer may still close the ledger at a lower end than
the recovery has reached, and a reader must never hear of a LAC above the end. Lengths are those of the last entry's
header. `open(...)` of a ledger that is not closed, and `tail`, never fence; what a reader cannot find by the metadata
that it knows, it looks for once more by what is stored then.
"""
