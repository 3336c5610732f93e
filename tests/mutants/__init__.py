"""Mutants: would the tests notice if a line of the product were wrong? `make mutants N=20 SEED=7`; docs/testing.md."""
