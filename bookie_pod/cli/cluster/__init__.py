"""The group `bookie cluster`; the other modules add their commands to it, and `commands` loads them all."""

from __future__ import annotations

import click


@click.group()
def cluster() -> None:
    """Look after a cluster: its metadata, its bookies, lost copies."""
