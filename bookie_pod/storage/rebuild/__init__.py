"""Rebuilding the databases of DbLedgerStorage while the bookie serves."""
