"""Placement: which bookies a new ledger, or a replacement, goes to."""
