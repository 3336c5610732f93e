"""Recovery: fencing, finding the end of a ledger that nobody closed, storing it."""
