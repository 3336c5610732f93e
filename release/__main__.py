"""The commands of a release: `python -m release --help`. Exit code 1 if something does not agree, one line for each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from release import arm64, assembling, changes, checking, mentions
from release.facts import ROOT, Address, ReleaseError, commit_seconds, version_of


@click.group()
def main() -> None:
    """Make a release, or check that the parts of one agree."""


@main.command()
def check() -> None:
    """Check that versions, image names, charts, definitions and pages of this checkout agree."""
    _end(checking.check_checkout(ROOT))


@main.command()
@click.argument("repository")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def make(repository: str, directory: Path) -> None:
    """Write every file of a release for REPOSITORY (OWNER/NAME) to DIRECTORY, and check them."""
    address = Address.parse(repository)
    if directory.exists() and any(directory.iterdir()):
        raise ReleaseError(f"{directory} is not empty: name another directory, or remove it")
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(commit_seconds(ROOT)))
    made = assembling.assemble(ROOT, address, directory)
    _end([*checking.check_checkout(ROOT), *checking.check_release(ROOT, made)])
    for path in sorted(each for each in directory.iterdir() if each.is_file()):
        click.echo(f"{path.stat().st_size:>10,} {path.name}")


@main.command()
@click.argument("tag")
def tag(tag: str) -> None:
    """Check that TAG is that of the version, and that CHANGELOG.md has its section."""
    version = version_of(ROOT)
    if tag != f"v{version}":
        raise ReleaseError(f"tag {tag} is not v{version}, the version of pyproject.toml")
    changes.section(ROOT, version)


@main.command()
def notes() -> None:
    """Print the section of CHANGELOG.md about this version."""
    click.echo(changes.section(ROOT, version_of(ROOT)))


@main.command("arm64")
def arm64_command() -> None:
    """Ask the package index whether the locked packages of the images have wheels for arm64."""
    _end(arm64.missing_wheels(ROOT))


@main.command("version")
@click.argument("version")
def version_command(version: str) -> None:
    """Write VERSION to pyproject.toml and wherever a file has to repeat it. Run `make docs` afterwards."""
    for path in mentions.write_version(ROOT, version_of(ROOT), version):
        click.echo(f"written: {path}")


def _end(faults: list[str]) -> None:
    for fault in faults:
        click.echo(f"release: {fault}", err=True)
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except ReleaseError as error:
        sys.exit(f"release: {error}")
