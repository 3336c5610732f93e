"""The files of examples/."""
