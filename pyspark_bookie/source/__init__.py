"""Reading ledgers as rows: batch, streaming, and tables of what the cluster knows about itself."""
