"""`export`: closed ledgers to single files."""
