"""`kubectl bookie logs`."""

from __future__ import annotations

import asyncio
import heapq

import click

from bookie_operator.plugin.connection import Api, Connection, connects


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, also of pods that are new.")
@click.option("--bookie", "bookies", multiple=True, metavar="POD", help="Only this pod. Give it again for another.")
@click.option("--tail", type=click.IntRange(0), default=100, show_default=True, help="Lines of each pod.")
@click.option("--since", type=click.IntRange(1), metavar="SECONDS", help="Only lines of the last so many seconds.")
@click.option("-p", "--previous", is_flag=True, help="Of the containers before their last restart.")
@connects
def logs(
    connection: Connection,
    name: str,
    follow: bool,
    bookies: tuple[str, ...],
    tail: int,
    since: int | None,
    previous: bool,
) -> None:
    """Logs of the pods of cluster NAME, in the order of time, each line after the name of its pod."""
    connection.run(lambda api: _printed(api, name, follow, frozenset(bookies), tail, since, previous))


async def _printed(
    api: Api, name: str, follow: bool, bookies: frozenset[str], tail: int, since: int | None, previous: bool
) -> None:
    from bookie_operator.plugin.clusters import find_cluster, pods_of
    from bookie_operator.plugin.faults import Fault, NotThereFault
    from bookie_operator.plugin.log_reading import Follower, Line, Wanted, read_log

    await find_cluster(api, name)
    pods = await pods_of(api, name)
    known = [str(pod["metadata"]["name"]) for pod in pods]
    for bookie in sorted(bookies - set(known)):
        raise NotThereFault(f"cluster {name} has no pod {bookie}; it has: {', '.join(known) or 'none'}")
    wanted = Wanted(tail, since, previous)
    width = max((len(pod) for pod in known), default=0)

    def show(line: Line) -> None:
        click.echo(f"{line.pod:<{width}} {line.time} {line.text}")

    if follow:
        async for line in Follower(api, name, bookies, wanted).lines():
            show(line)
        return
    chosen = [pod for pod in pods if not bookies or pod["metadata"]["name"] in bookies]
    read = await asyncio.gather(*(read_log(api, pod, wanted) for pod in chosen), return_exceptions=True)
    for line in heapq.merge(*(each for each in read if not isinstance(each, BaseException))):
        show(line)
    failed = [each for each in read if isinstance(each, BaseException)]
    for error in failed:
        if not isinstance(error, OSError):
            raise error
        click.echo(f"kubectl-bookie: {error.strerror}", err=True)
    if failed:
        raise Fault(
            "no log could be read"
            if len(failed) == len(read)
            else f"{len(failed)} of {len(read)} logs could not be read, or not to their end: what is shown is not all"
        )
