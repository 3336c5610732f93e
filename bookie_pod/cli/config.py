"""`bookie config`: look at a configuration without starting anything."""

from __future__ import annotations

import json

import click

from bookie_pod.cli.options import AS_JSON, overrides, set_option
from bookie_protocol.errors import ExitCode

_FILE = click.argument("file", required=False, envvar="BOOKIE_CONF", metavar="[FILE]")


@click.group()
def config() -> None:
    """Print, check and document the configuration."""


@config.command("print")
@_FILE
@set_option
@click.option("--set-only", is_flag=True, help="Show only the keys that are set.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of key=value lines.")
def print_(file: str | None, assignments: tuple[str, ...], set_only: bool, as_json: bool) -> None:
    """Print the effective value of every key, from FILE and the environment as `serve` would see them."""
    from bookie_pod.config.load import load_config
    from bookie_pod.config.model import effective

    loaded = load_config(file, overrides=overrides(assignments, {}))
    values = {
        declared.name: text for declared, text in effective(loaded) if not set_only or declared.name in loaded.set_keys
    }
    if as_json:
        click.echo(json.dumps(values, indent=2))
    else:
        for name, text in values.items():
            click.echo(f"{name}={text}")


@config.command()
@_FILE
@set_option
@AS_JSON
def check(file: str | None, assignments: tuple[str, ...], as_json: bool) -> int:
    """List every problem of a configuration, one line each; exit code 1 if there is one.

    Looks at all that `serve` looks at before it touches a disk, a port or the cluster: classes, files, certificates and
    this host's name, too. Run it where the bookie is to run. Of a valid configuration it prints who may do what on
    which port.
    """
    from bookie_pod.config.load import read_config
    from bookie_pod.node.dry_start import refusals
    from bookie_pod.node.rights import rights

    loaded = read_config(file, overrides=overrides(assignments, {}))
    problems = loaded.problems if loaded.config is None else list(refusals(loaded.config))
    if as_json:
        config = None if problems else loaded.config
        click.echo(
            json.dumps(
                {
                    "valid": config is not None,
                    "problems": list(map(str, problems)),
                    "ignored_keys": [] if config is None else list(config.ignored_keys),
                    "rights": [] if config is None else list(rights(config)),
                }
            )
        )
        return ExitCode.OK if config is not None else ExitCode.INVALID_CONFIGURATION
    for problem in problems:
        click.echo(problem, err=True)
    if loaded.config is None or problems:
        return ExitCode.INVALID_CONFIGURATION
    for name in loaded.config.ignored_keys:
        click.echo(f"{name}: has no meaning here and is ignored")
    click.echo("The configuration is valid.")
    for line in rights(loaded.config):
        click.echo(line)
    return ExitCode.OK


@config.command()
@click.option("--write", "path", type=click.Path(dir_okay=False), help="Write the page there instead.")
def docs(path: str | None) -> None:
    """Print the documentation of every key as Markdown."""
    from bookie_pod.config.document import configuration_page

    page = configuration_page()
    if path is None:
        click.echo(page, nl=False)
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
