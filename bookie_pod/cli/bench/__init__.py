"""`bookie bench`: how fast a cluster writes and reads, as a client sees it.

commands.py   the command line; loads nothing heavy
load.py       the work; rates and percentiles, for people and for programs
"""
