"""A whole cluster in one process: virtual clock, virtual network, real clients and real bookie servers.

From the bottom up: `clock` (the event loop), `network`, `metadata` (a tree of nodes with sessions), `bookie` (the
real request handling over a disk of memory), `history` (what everybody saw), `checkers` (what must hold), `actors`
and `faults` (what happens), `scenario` (drawn from one seed), `world` (all of it together, run once).

Everything that decides comes from the seed: the same seed gives the same run, to the last event.
"""
