"""Whole clusters under a virtual clock, thousands of them: `python -m tests.simulation --help`.

Clients as they are, bookies with their real request handling, registration and replay, and the metadata layer run
over a virtual clock, network, disk and tree, all from one seed. What they decide must therefore depend on the event
loop's clock, on its `random` and on messages alone: one seed gives one run, to the last event. Faults strike at times
and at the n-th event of a kind; the invariants of the protocol are judged as things happen.

With `--of healing` auditors, replication workers, decommissions, their undo and `recover` run there too, as they are,
while bookies die, come back late or empty, copies stand in the wrong racks, and healers are killed, cut off and
stopped. With `--of streams` it is writers of streams that take over from each other, publishers, consumers with
cursors, retention, deletions under names that are used again, and Spark's offload, restore and search for orphans,
which are written for threads: each has one, that runs only while the loop stands still for it.
"""
