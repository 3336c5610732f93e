"""Every replica of every ledger: is it there, and is it what was written."""
