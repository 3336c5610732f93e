"""Reading a ledger: replica order and fall-over, pipelined ranges, the reader's handle.

choice                          which replica is asked, in which order (health, read-only, region and rack), and what
                                came of it
sources                         by which request
plan, range_read                pure: pieces of a range within its window; a range under way, without a plan where one
                                batch brings it, else by batch (of a striped ledger one for each place in the
                                ensemble, with a step) or one request per entry
entry_read, batch_read, speculation  fall-over, speculation and parallel reads of an entry or a batch, and which of
                                several errors counts; a damaged entry of a batch is read elsewhere alone
reader.EntryReader              `batches` (a range, some entries at a time), `range` (the same without a generator),
                                `read_into` (all of it, in one list), `read_entry`;
                                `reading.maintenance.replicas(handle)`: one named replica without fall-over (`read`,
                                `read_all`, `scan`)
lac                             coverage and the vote on the LAC, for fencing and for readers; asking bookies for it
followed.FollowedLedger         metadata that follow the store, a LAC that only rises; `LacFollower`, `tail`:
                                long polls (version 2: polling) and the iteration over them
"""
