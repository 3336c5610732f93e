"""`bookie bench`: the write and read throughput of a cluster, as a client sees it.

The work, which is slow to load, is in `bench_load`.
"""

from __future__ import annotations

import click

from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.options import AS_JSON, Seconds, password_option, quorum_options, read_password
from bookie_pod.config.keys import MIB


@click.group()
def bench() -> None:
    """Measure a cluster from this machine: entries and bytes per second, latency percentiles."""


@bench.command()
@click.option("--entries", default=100_000, show_default=True, type=click.IntRange(1), help="Entries in all.")
@click.option("--seconds", type=Seconds(above=True), help="Stop after so long, if that is earlier.")
@click.option("--size", default=1024, show_default=True, type=click.IntRange(0, 64 * MIB), help="Bytes of an entry.")
@click.option("--ledgers", default=1, show_default=True, type=click.IntRange(1, 10_000), help="Ledgers at a time.")
@click.option(
    "--window",
    default=1_000,
    show_default=True,
    type=click.IntRange(1),
    help="Entries of one ledger that may wait for their acknowledgement; 1 measures single appends.",
)
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Entries handed over at a time; latency is then that of a batch. Above 1 it costs this side much less.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Entries per second. [default: all it takes]")
@quorum_options(2)
@click.option("--keep", is_flag=True, help="Keep the ledgers, and print their ids; else they are deleted.")
@password_option
@AS_JSON
@connects
def write(
    connection: Connection,
    entries: int,
    seconds: float | None,
    size: int,
    ledgers: int,
    window: int,
    batch: int,
    rate: float | None,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    keep: bool,
    password_file: str | None,
    as_json: bool,
) -> None:
    """Append entries of random bytes. Latency is from the append to its acknowledgement.

    With --rate latency counts from the moment at which an entry was due, so that a stall shows in all entries that it
    held up.
    """
    from bookie_pod.cli.bench_load import WriteLoad, run_writes, show

    load = WriteLoad(
        entries=entries,
        seconds=seconds,
        size=size,
        ledgers=ledgers,
        batch=batch,
        rate=rate,
        quorums=(ensemble, write_quorum, ack_quorum),
        keep=keep,
        password=read_password(password_file),
    )
    defaults = {"write_window_entries": window}
    show(connection.run(lambda cluster: run_writes(cluster, load), defaults), as_json)


@bench.command()
@click.argument("ledger_ids", type=click.IntRange(min=0), metavar="LEDGER...", nargs=-1, required=True)
@click.option("--entries", default=100_000, show_default=True, type=click.IntRange(1), help="Entries in all.")
@click.option("--seconds", type=Seconds(above=True), help="Stop after so long, if that is earlier.")
@click.option("--batch", default=100, show_default=True, type=click.IntRange(1, 100_000), help="Entries of one read.")
@click.option("--window", default=4, show_default=True, type=click.IntRange(1, 10_000), help="Reads at a time.")
@click.option("--random", "is_random", is_flag=True, help="Read at random places instead of from the first entry on.")
@password_option
@AS_JSON
@connects
def read(
    connection: Connection,
    ledger_ids: tuple[int, ...],
    entries: int,
    seconds: float | None,
    batch: int,
    window: int,
    is_random: bool,
    password_file: str | None,
    as_json: bool,
) -> None:
    """Read entries of ledgers. Latency is that of one read of --batch entries; --batch 1 --random measures single
    reads."""
    from bookie_pod.cli.bench_load import ReadLoad, run_reads, show

    load = ReadLoad(
        ledger_ids=ledger_ids,
        entries=entries,
        seconds=seconds,
        batch=batch,
        window=window,
        is_random=is_random,
        password=read_password(password_file),
    )
    show(connection.run(lambda cluster: run_reads(cluster, load)), as_json)
