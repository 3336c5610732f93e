"""`bookie cluster whoami`: who this bookie is."""

from __future__ import annotations

import json

import click

from bookie_pod.cli.options import config_option, overrides, set_option
from bookie_protocol.errors import ExitCode, MetadataUnavailable, ServerStartFailed


@click.command()
@config_option("The bookie's properties file.")
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def whoami(file: str | None, assignments: tuple[str, ...], as_json: bool) -> int:
    """Show which bookie this configuration makes: id, address, registration, cookies, instance id.

    Changes nothing. The exit code is 1 if the bookie would refuse to start; the reason is one line.
    """
    import asyncio
    from dataclasses import asdict

    from bookie_pod.config.load import load_config
    from bookie_pod.node.identity.whoami import who_am_i
    from bookie_pod.storage.files_posix import PosixFiles

    config = load_config(file, overrides=overrides(assignments, {}))
    try:
        found = asyncio.run(who_am_i(config, PosixFiles()))
    except MetadataUnavailable as error:
        raise ServerStartFailed(f"the metadata service does not answer: {error}") from error
    code = ExitCode.OK if found.problem is None else ExitCode.INVALID_CONFIGURATION
    if as_json:
        click.echo(json.dumps(asdict(found) | {"instance_id_matches": found.instance_id_matches}))
        return code
    matches = {True: " (as in every cookie)", False: " (a cookie names another)", None: ""}[found.instance_id_matches]
    for name, value in (
        ("bookie id", found.bookie_id),
        ("advertised address", found.advertised_address),
        ("registered", found.registered or "no"),
        ("registered address", found.registered_address or "-"),
        ("metadata service", found.metadata_service),
        ("instance id", (found.instance_id or "none") + matches),
        ("cookie", found.cookie),
    ):
        click.echo(f"{name:<20}{value}")
    if found.problem is not None:
        click.echo(f"bookie: {found.problem}", err=True)
    return code
