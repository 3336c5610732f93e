"""Healing in the simulated cluster: auditors, replication workers and operators' commands, on hosts of their own.

`plan` (what is drawn), `healer`, `drainer` and `commands` (the real code on virtual hosts), `collector` (bookies drop
what is surplus), `racks` (where bookies stand), `copies` (who holds what), `decommissions` (how far they are), `judge`
(what must hold), `faults` (what happens), `world` (all of it together).
"""
