"""`restore`: archived ledgers back into a cluster."""
