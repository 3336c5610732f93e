"""`bookie autorecovery`: the auditor and replication worker as a process of their own."""

from __future__ import annotations

from typing import Any

import click

from bookie_pod.cli.daemon import main_process
from bookie_pod.cli.options import config_option, overrides, process_shorthands, set_option


@click.command()
@config_option("Properties file such as Apache's bk_server.conf.")
@set_option
@process_shorthands
@main_process
def autorecovery(file: str | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Find lost copies of entries and restore them.

    Runs a candidate for the cluster's auditor, and a replication worker; any number may run. Reads the configuration of
    a bookie as `bookie serve` does; the metadata service is all that it needs. SIGTERM and SIGINT stop it in an orderly
    way. The exit code is 0 after such a stop, 1 for an invalid configuration, 2 if a port cannot be opened or the
    cluster does not exist, 3 if the metadata service does not answer, or the session expired and cannot be renewed.
    """
    from bookie_pod.config.load import load_config

    config = load_config(file, overrides=overrides(assignments, flags))

    from bookie_pod import logs

    logs.configure(config.log.format, config.log.level)

    from bookie_pod.node.processes.auto_recovery import serve_auto_recovery

    return serve_auto_recovery(config)
