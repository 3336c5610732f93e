"""How commands reach a bookie's admin API: `--url`, `--token-file`, `--ca-file`, `--cert-file`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

DEFAULT_URL: Final = "http://127.0.0.1:8000"


def asks_bookie(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, and passes the command a `BookieApi` as its first argument."""

    @click.option(
        "--url",
        envvar="BOOKIE_URL",
        default=DEFAULT_URL,
        show_default=True,
        help="The bookie's HTTP server. [environment: BOOKIE_URL]",
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
        url: str,
        token_file: str | None,
        ca_file: str | None,
        cert_file: str | None,
        timeout: float,
        **others: Any,
    ) -> Any:
        from bookie_pod.cli.bookie_api import BookieApi

        api = BookieApi(url, token_file=token_file, ca_file=ca_file, cert_file=cert_file, timeout=timeout)
        return command(api, *arguments, **others)

    return asking
