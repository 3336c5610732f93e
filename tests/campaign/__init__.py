"""The fault campaign: a cluster of real processes, faults that a seed draws, a history of promises, and a judge.

    python -m tests.campaign --seed 1 --minutes 10       # or: make campaign SEED=1 MINUTES=10
    python -m tests.campaign --planted swallow-eio       # a defect is planted; the campaign has to find it

The parts: `network` and `programs` (processes in network namespaces), `shim` (system calls that fail, and what a loss
of power takes away), `world` (the cluster, and who starts again what has ended), `faults` (what happens to it),
`history` (what clients were told), `actors` (the clients), `watch` (what must hold at every moment), `judge` (what must
hold when the faults are over), `rounds` (the loop), `report`, and `planting` (defects on purpose).
docs/reliability.md has what it found.
"""
