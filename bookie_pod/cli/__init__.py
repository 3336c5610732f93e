"""The `bookie` command line: `serve`, `config print|check|docs`, `version`."""
