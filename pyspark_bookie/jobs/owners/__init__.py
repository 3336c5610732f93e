"""Whose a ledger is: by its custom metadata, and by the lists of those who say they own it."""
