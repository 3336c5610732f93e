"""Writing rows as entries of ledgers: batch and streaming, each row once."""
