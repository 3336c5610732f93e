"""`bookie drain-clients`: send writers elsewhere and flush, before this machine's bookie is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, Seconds, config_option, tell

if TYPE_CHECKING:
    from bookie_protocol.admin_api.client import BlockingAdmin

LOOK_S: Final = 5.0
"""Maximum wait for the first answer, in seconds: a bookie that hangs is not waited for."""


@click.command("drain-clients")
@config_option("The bookie's properties file: its HTTP server and token are found there.")
@click.option("--url", envvar="BOOKIE_URL", help="The bookie's HTTP server. [environment: BOOKIE_URL]")
@click.option(
    "--token-file",
    envvar="BOOKIE_TOKEN_FILE",
    metavar="FILE",
    help="File with the bearer token. [environment: BOOKIE_TOKEN_FILE]",
)
@click.option(
    "--timeout",
    type=Seconds(0.1),
    default=60.0,
    show_default=True,
    help="Seconds until it gives up.",
)
@AS_JSON
def drain_clients(file: str | None, url: str | None, token_file: str | None, timeout: float, as_json: bool) -> int:
    """Have the bookie on this machine take no more writes, and flush: what comes before SIGTERM.

    Made for a preStop hook of Kubernetes. The bookie registers as read-only, so that writers go to other bookies, and
    flushes, so that its stop is short. Nothing of it outlives the process: the next start is as the last one was.
    A bookie that is gone, or does not serve yet, is fine: exit code 0.
    """
    import time

    from bookie_protocol.admin_api import bookie
    from bookie_protocol.errors import BookieTimeout, BookieUnavailable

    began = time.monotonic()
    api = _api(file, url, token_file, min(timeout, LOOK_S))
    try:
        if not api.ask(bookie.STATE).running:
            tell(as_json, f"the bookie at {api.at.url} does not serve: nothing to do", url=api.at.url, drained=False)
            return CommandExit.OK
        left = max(0.1, timeout - (time.monotonic() - began))
        state = _api(file, url, token_file, left).ask(bookie.DRAIN_CLIENTS)
    except BookieTimeout:
        raise
    except BookieUnavailable:
        tell(as_json, f"no bookie at {api.at.url}: nothing to do", url=api.at.url, drained=False)
        return CommandExit.OK
    mode = "takes no more writes" if state.read_only else "still takes writes (readOnlyModeEnabled=false)"
    line = f"the bookie at {api.at.url} {mode}, and has flushed"
    tell(as_json, line, url=api.at.url, drained=True, read_only=state.read_only)
    return CommandExit.OK


def _api(file: str | None, url: str | None, token_file: str | None, timeout: float) -> BlockingAdmin:
    from bookie_pod.cli.bookie_api import bookie_api, own_bookie

    if url is not None:
        return bookie_api(url, token_file=token_file, timeout=timeout)
    return own_bookie(file, token_file=token_file, timeout=timeout)
