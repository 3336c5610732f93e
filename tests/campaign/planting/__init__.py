"""Defects on purpose: a campaign that does not find them is worth nothing."""
