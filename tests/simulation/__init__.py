"""Whole clusters under a virtual clock, thousands of them: `python -m tests.simulation --help`."""
