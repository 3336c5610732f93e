"""Writing a ledger: the add state machine, the window, ensemble change, close.

add_state.AddState              pure: answers in, `Outcome` out (fail, change, resend, deliver)
pipeline.AddPipeline            carries outcomes out; takes an `EnsembleChange`, so recovery can pass its own
intake.Outbox                   what one turn of the loop submits is encoded and sent together; `_settle` lets it
                                leave before the state hears of anything but acknowledgements
traced_intake.TracedIntake      optional: each call is a span, whose context its first add carries
pending_add.PendingAdd          one object for all replicas of an add: it waits in the connections to all its bookies;
                                acknowledgements that come together are counted together
advanced.ReorderBuffer          pure: entries with chosen ids leave in order, so headers are exact (`create_advanced`)
fault_domains.SpreadAddState    optional: acknowledgements count only when they come from enough racks, regions or
                                zones
doubt.Doubt                     answers over a connection that was made again wait until the metadata show the
                                ledger open
explicit_lac, pipeline.watch_quorum, force  LAC of a writer that pauses, quorum time-out, deferred sync
ensemble_change, metadata_update  pure segments, spare bookies, changes one at a time, mending; the compare-and-set
                                loop

A failed bookie is replaced: spare found and connected, metadata written, pending adds sent again. Without a spare its
position is *degraded*: new entries skip it while each still reaches Qa, and it is mended when a spare appears or the
bookie returns. When Qa is out of reach every pending add fails once, in order. Acknowledgements of one turn of the
loop are delivered together, before anything that the same turn brings against the ledger.

With `deferred_sync` entries are acknowledged before their sync and the LAC moves with `force()`, which needs every
bookie of the ensemble; the ensemble never changes, so a failed bookie ends the handle, and closing cuts off what was
not forced. So does a lost connection while there are entries that were not forced: the bookie may have been restarted
without them, and would answer a force all the same.
"""
