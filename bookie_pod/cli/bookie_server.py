"""How commands reach a bookie's admin API: `--url`, `--token-file`, `--ca-file`, `--cert-file`.

Where `BOOKIE_CONF` names a configuration, as in a pod, the bookie that it belongs to is meant.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Final

import click

DEFAULT_URL: Final = "http://127.0.0.1:8000"


def asks_bookie(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and passes the command a `BlockingAdmin` as its first argument."""

    @click.option(
        "--url",
        envvar="BOOKIE_URL",
        help=f"The bookie's HTTP server. [environment: BOOKIE_URL; default: as BOOKIE_CONF says, else {DEFAULT_URL}]",
    )
    @click.option(
        "--token-file",
        envvar="BOOKIE_TOKEN_FILE",
        metavar="FILE",
        help="File with the bearer token. [environment: BOOKIE_TOKEN_FILE]",
    )
    @click.option("--ca-file", metavar="FILE", help="Certificates to trust (https); default: the system's.")
    @click.option("--cert-file", metavar="FILE", help="Own certificate and key in one PEM file (https).")
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=60.0,
        show_default=True,
        help="Seconds to wait for an answer.",
    )
    @functools.wraps(command)
    def asking(
        *arguments: Any,
        url: str | None,
        token_file: str | None,
        ca_file: str | None,
        cert_file: str | None,
        timeout: float,
        **others: Any,
    ) -> Any:
        from bookie_pod.cli.bookie_api import bookie_api
        from bookie_pod.cli.own_bookie import own_bookie

        file = os.environ.get("BOOKIE_CONF")
        if url is None and file and ca_file is None and cert_file is None:
            return command(own_bookie(file, token_file=token_file, timeout=timeout), *arguments, **others)
        url = DEFAULT_URL if url is None else url
        api = bookie_api(url, token_file=token_file, ca_file=ca_file, cert_file=cert_file, timeout=timeout)
        return command(api, *arguments, **others)

    return asking
