"""`bookie gateway`: the gRPC gateway as a process of its own."""

from __future__ import annotations

from typing import Any

import click

from bookie_pod.cli.daemon import main_process
from bookie_pod.cli.options import config_option, gateway_shorthands, overrides, set_option
from bookie_protocol.quiet import quiet_grpc


@click.command()
@config_option("Properties file such as Apache's bk_server.conf.")
@set_option
@gateway_shorthands
@main_process
def gateway(file: str | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Serve ledgers over gRPC, to clients of any language.

    What each bookie does on its gRPC port by default, without a bookie: any number may run, where applications are or
    beside the bookies, and each has processors to itself. Reads the configuration of a bookie as `bookie serve` does;
    the metadata service is all that it needs. HTTP serves probes and metrics only. SIGTERM and SIGINT stop it in an
    orderly way: the ledgers that are written through it are closed. The exit code is 0 after such a stop, 1 for an
    invalid configuration, 2 if a port cannot be opened or the cluster does not exist, 3 if the metadata service does
    not answer, or the session expired and cannot be renewed.
    """
    quiet_grpc()

    from bookie_pod.config.load import load_config

    config = load_config(file, overrides=overrides(assignments, flags))

    from bookie_pod import logs

    logs.configure(config.log.format, config.log.level)

    from bookie_pod.node.processes.gateway import serve_gateway

    return serve_gateway(config)
