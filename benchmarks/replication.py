"""How fast fragments are re-replicated, beside what the disk itself takes in the same run.

    python -m benchmarks.replication --size 1024 --mebibytes 200

Bookies are processes on one disk. Ledgers are written, then their second replicas are moved to the spare bookie, and
back, `--rounds` times. Every byte that arrives is written twice by the target, to its journal and to its entry
log; the raw limit writes the same bytes once, in groups of 1 MiB with `fdatasync` behind each.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import psutil
import uvloop

from benchmarks.environment import Environment
from bookie_client import Client, ClientOptions
from bookie_client.replication.fragments import fragments
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle
from tests.support.bookie_process import BookieProcess

MIB: Final = 1024 * 1024


def raw_mib_per_second(directory: Path, mebibytes: int) -> float:
    """Writes so many groups of 1 MiB, each synced."""
    group = Random(1).randbytes(MIB)
    file = directory / "raw"
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        began = time.perf_counter()
        for number in range(mebibytes):
            os.pwrite(fd, group, number * MIB)
            os.fdatasync(fd)
        return mebibytes / (time.perf_counter() - began)
    finally:
        os.close(fd)
        file.unlink()


async def written(client: Client, options: dict[str, Any]) -> int:
    """A closed ledger with its share of `--mebibytes` of payload."""
    payload, share = Random(1).randbytes(options["size"]), options["mebibytes"] * MIB // options["ledgers"]
    left = max(1, share // options["size"])
    quorum = options["write_quorum"]
    ledger = await client.create(ensemble=options["ensemble"], write_quorum=quorum, ack_quorum=quorum)
    async with ledger:
        while left > 0:
            await ledger.append_many([payload] * min(left, 10_000))
            left -= 10_000
    return ledger.ledger_id


def cpu_seconds(processes: Sequence[psutil.Process]) -> list[float]:
    """User and system time of each."""
    return [sum(process.cpu_times()[:2]) for process in processes]


async def move(
    client: Client, ledger_ids: Sequence[int], options: dict[str, Any], bookies: list[psutil.Process]
) -> dict[str, Any]:
    """Moves the replicas at position 1 to whichever bookie is spare."""
    throttle = ReplicationThrottle(options["throttle"] * MIB if options["throttle"] else None)
    limits = ReplicationOptions(
        entry_batch_size=options["entries"], batch_reads=options["batch_reads"], throttle=throttle
    )
    replicator, room = FragmentReplicator(client, limits), asyncio.Semaphore(options["at_once"])

    async def one(ledger_id: int) -> tuple[int, int]:
        async with room:
            (fragment,) = fragments(ledger_id, await client.metadata(ledger_id), -1)
            result = await replicator.replicate(fragment, {1: fragment.ensemble[1]})
            return result.entries, result.nbytes

    processes = [psutil.Process(), *bookies]
    before = cpu_seconds(processes)
    began = time.perf_counter()
    moved = await asyncio.gather(*map(one, ledger_ids))
    seconds = time.perf_counter() - began
    entries, mebibytes = sum(each[0] for each in moved), sum(each[1] for each in moved) / MIB
    cpu = [(now - then) * 1e6 / entries for now, then in zip(cpu_seconds(processes), before, strict=True)]
    return {
        "seconds": seconds,
        "mib_per_second": mebibytes / seconds,
        "entries_per_second": entries / seconds,
        "ledgers_per_second": len(ledger_ids) / seconds,
        "client_cpu_us_per_entry": cpu[0],
        "bookies_cpu_us_per_entry": cpu[1:],
    }


async def measure(environment: Environment, bookies: list[BookieProcess], options: dict[str, Any]) -> dict[str, Any]:
    """All rounds of one cluster."""
    processes = [psutil.Process(bookie.pid) for bookie in bookies]
    settings = ClientOptions(protocol_version=int(options["protocol"][1]))
    async with Client(environment.metadata_uri, settings, random=Random(1)) as client:
        ledger_ids = [await written(client, options) for _ in range(options["ledgers"])]
        rounds = []
        for _ in range(options["rounds"]):
            rounds.append(await move(client, ledger_ids, options, processes))
            click.echo(json.dumps(rounds[-1]), err=True)
    return {"options": options, "rounds": rounds}


@click.command()
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the data directories.")
@click.option("--size", default=1024, help="Bytes of an entry.")
@click.option("--mebibytes", default=200, help="Payload of all ledgers.")
@click.option("--ledgers", default=1)
@click.option("--at-once", default=8, help="Ledgers that are moved at the same time.")
@click.option("--ensemble", default=2)
@click.option("--write-quorum", default=2, help="Less than the ensemble: single reads.")
@click.option("--entries", default=2_000, help="Entries of one read, at most.")
@click.option("--batch-reads/--single-reads", default=True)
@click.option("--throttle", default=0, help="MiB per second; 0: none.")
@click.option("--protocol", type=click.Choice(["v2", "v3"]), default="v3", show_default=True)
@click.option("--rounds", default=4)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def main(parent: Path | None, as_json: bool, **options: Any) -> None:
    """Moves replicas between bookies and tells how fast."""
    with Environment(parent) as environment:
        bookies = [environment.bookie("ours") for _ in range(options["ensemble"] + 1)]
        for bookie in bookies:
            bookie.start()
        raw = raw_mib_per_second(environment.directory, options["mebibytes"])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(measure(environment, bookies, options))
    result["raw_mib_per_second"] = raw
    if as_json:
        click.echo(json.dumps(result))
        return
    speeds = sorted(each["mib_per_second"] for each in result["rounds"])
    median = speeds[len(speeds) // 2]
    click.echo(
        f"{options['protocol']} {options['size']} B, {options['write_quorum']} of {options['ensemble']}: "
        f"{median:.0f} MiB/s re-replicated (least {speeds[0]:.0f}, most {speeds[-1]:.0f}); "
        f"raw writes with fdatasync {raw:.0f} MiB/s, ratio {median / raw:.2f}"
    )


if __name__ == "__main__":
    main()
