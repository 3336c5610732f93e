"""Ledger metadata: the model and its three stored formats (reference metadata layout, section 8)."""
