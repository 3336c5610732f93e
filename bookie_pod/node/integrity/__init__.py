"""Integrity in a bookie: the scrubber's wiring, and the comparison of what is stored with what metadata says.

With `dataIntegrityChecking` lost cookies, or an unclean stop without journaled data, put ledgers in limbo *before* the
replay (flag, limbo and fence durable; only then cookies are stamped); `DataIntegrityCheck` then recovers what is open,
copies what is missing through `LocalCopies` (recovery adds, journaled), and clears limbo and flag. It does so for every
ledger in limbo, also if an engine that misses an index file, or a replay, put it there. A new bookie does the same with
every engine and whatever the configuration says: its id may be that of one that is gone, which ledgers still name. So
does one with a directory that was set back (`node.identity.disk_age`). The highest ledger id of that moment stays in
`earlier-ledgers`; of a ledger up to it that is not here the metadata service is asked before the first entry is taken
(`server.tcp.metadata_questions`), since a writer that has been idle since before may not know that its ledger was
closed (apache/bookkeeper#4812, where the reference acknowledges what is lost).
"""
