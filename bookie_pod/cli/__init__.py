"""The `bookie` command line: `serve`, `standalone`, `ledger`, `bench`, `cluster`, `config`, `trial`, `version`."""
