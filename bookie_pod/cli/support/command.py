"""`bookie support-bundle`: everything that helps to understand one bookie, in one file without secrets."""

from __future__ import annotations

import time

import click

from bookie_pod.cli.options import AS_JSON, config_option, overrides, set_option, tell


@click.command("support-bundle")
@config_option("Configuration of the bookie.")
@set_option
@click.option("-o", "--output", metavar="FILE", help="File to write. [default: bookie-support-TIME.tar.gz]")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE", help="Add the end of this log. Give it again for another."
)
@click.option("--log-mb", type=click.IntRange(1, 64), default=4, show_default=True, help="MiB of each log.")
@click.option("--url", envvar="BOOKIE_URL", help="The bookie's HTTP server. [environment: BOOKIE_URL]")
@click.option(
    "--token-file", envvar="BOOKIE_TOKEN_FILE", metavar="FILE", help="Its token. [environment: BOOKIE_TOKEN_FILE]"
)
@AS_JSON
def support_bundle(
    file: str | None,
    assignments: tuple[str, ...],
    output: str | None,
    logs: tuple[str, ...],
    log_mb: int,
    url: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Write everything that helps to understand a bookie into one file that only you may read.

    It has versions, the configuration, the findings of `bookie doctor --no-writes`, the use of the disks, the process
    and its threads, what the bookie says of itself (state, space, garbage collection, scrubs, cluster, metrics), and
    the logs that you name. Run it on the bookie's machine as its user; the bookie need not run. Secrets, and values
    that look like them, are replaced; look at the file all the same before you give it away.
    """
    from bookie_pod.cli.support.bundle import Bundle, Place
    from bookie_protocol.private_archive import PrivateArchive

    place = Place(file, overrides(assignments, {}), url, token_file)
    bundle = Bundle(place, logs, log_mb << 20)
    path = output or f"bookie-support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"
    with PrivateArchive(path, "bookie-support") as archive:
        for name, text in bundle.files():
            archive.add(name, text)
    missing = [*bundle.missing, *archive.cut]
    more = f"; {len(missing)} parts could not be read, or not all of them (missing.txt)" if missing else ""
    tell(as_json, f"{path}: {archive.files} files{more}", path=path, files=archive.files, missing=missing)
