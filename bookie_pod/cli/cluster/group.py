"""The group `bookie cluster`; other modules add their commands to it."""

from __future__ import annotations

import click


@click.group()
def cluster() -> None:
    """Look after a cluster: its metadata, its bookies, lost copies."""
