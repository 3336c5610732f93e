"""Healing in the simulated cluster: auditors, replication workers and decommissions, on hosts of their own.

`plan` (what is drawn), `healer` and `drainer` (the real code on virtual hosts), `collector` (bookies drop what is
surplus), `copies` (who holds what), `judge` (what must hold), `faults` (what happens), `world` (all of it together).
"""
