"""`bookie serve`: read the configuration and run the bookie until it is told to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bookie_pod.cli.daemon import main_process
from bookie_pod.cli.options import config_option, overrides, set_option, shorthands

if TYPE_CHECKING:
    from bookie_pod.config.model import BookieConfig


@click.command()
@config_option("Properties file such as Apache's bk_server.conf.")
@set_option
@shorthands
@main_process
def serve(file: str | None, assignments: tuple[str, ...], **flags: Any) -> int:
    """Run a bookie.

    Reads FILE, then BK_<key> environment variables, then the flags; later ones win. SIGTERM and SIGINT
    stop it in an orderly way. The exit code is 0 after such a stop, 1 for an invalid configuration, 2 if a
    port cannot be opened or a cookie forbids the start (the directories are another bookie's, or empty), 3 if
    the metadata service does not answer or the session expired, 4 if registration failed, 5 for any other
    fault of the bookie. The reason is one line on standard error, and in /dev/termination-log if there is one.
    """
    from bookie_pod.config.load import load_config

    config = load_config(file, overrides=overrides(assignments, flags))
    _check_user(config.auth.permitted_startup_users)

    from bookie_pod import logs

    logs.configure(config.log.format, config.log.level)
    _log_start(config)

    from bookie_pod.node.processes.bookie import serve as run_node

    return run_node(config)


def _check_user(permitted: tuple[str, ...]) -> None:
    if not permitted:
        return
    import getpass

    from bookie_protocol.errors import InvalidConfiguration

    user = getpass.getuser()
    if user not in permitted:
        raise InvalidConfiguration(
            f"permittedStartupUsers={','.join(permitted)}: the bookie was started by {user}; start it as one of these"
        )


def _log_start(config: BookieConfig) -> None:
    from bookie_pod import logs

    log = logs.logger("config")
    log.info("configuration loaded", keys_set=len(config.set_keys), memory_budget_mb=config.memory.budget_mb)
    if config.ignored_keys:
        log.warning("configuration keys without meaning here are ignored", keys=list(config.ignored_keys))
