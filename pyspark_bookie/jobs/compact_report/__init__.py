"""What compaction would give back, bookie by bookie and entry log by entry log."""
