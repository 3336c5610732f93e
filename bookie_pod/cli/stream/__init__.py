"""`bookie stream`: streams of ledgers on the command line."""
