"""`bookie disk convert` and `finish`: an index in the form of another engine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from bookie_pod.cli.disk.group import UNCLEAN, disk, print_json
from bookie_pod.cli.disk.place import Place, need_ledgers, on_disk
from bookie_pod.cli.options import AS_JSON_LINES

_ENGINES: Final = {
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
    "interleaved": "org.apache.bookkeeper.bookie.InterleavedLedgerStorage",
}


@disk.command()
@click.option("--to", "engine", type=click.Choice(list(_ENGINES)), required=True, help="The engine to convert to.")
@UNCLEAN
@AS_JSON_LINES
@on_disk()
def convert(place: Place, engine: str, unclean: bool, as_json: bool) -> None:
    """Convert the index to another storage engine. Entry logs and journals stay as they are.

    The new index is built beside the old one and compared with it row by row; then they change places, and the old one
    stays as a backup. A conversion that ends before that leaves everything as it was; one that ends in the middle of
    the change is finished by `bookie disk finish`. (Apache: convert-to-db-storage, convert-to-interleaved-storage)
    """
    from bookie_pod.cli.progress import Bar
    from bookie_pod.storage.index_rebuild.convert import conversion
    from bookie_pod.storage.index_rebuild.swap import finish
    from bookie_pod.storage.inspect.layout import IndexKind

    need_ledgers(place)
    target = IndexKind.DATABASES if engine == "db" else IndexKind.FILES
    with place.to_change(unclean=unclean) as stores:
        for folder in place.layout.index_folders:
            finish(place.files, stores, folder)
        with place.spaces() as spaces:
            if spaces.kind is target:
                _done(engine, as_json, {"changed": False})
                return
            converting = conversion(place.files, stores, place.layout, spaces.spaces[0].index, target)
            try:
                with Bar("converting ledgers") as bar:
                    done = 0
                    while converting.step():
                        now = converting.report.ledgers + converting.report.compared
                        bar.advance(now - done)
                        done = now
                converting.commit()
            finally:
                converting.close()
    _done(engine, as_json, {"changed": True, **asdict(converting.report)})


def _done(engine: str, as_json: bool, report: dict[str, object]) -> None:
    name = _ENGINES[engine]
    if as_json:
        print_json({"ledgerStorageClass": name, **report})
        return
    if report["changed"]:
        click.echo(f"{report['ledgers']} ledgers, {report['entries']} entries; the old index is now {report['backup']}")
    else:
        click.echo("The index has that form already.")
    click.echo(f"Set ledgerStorageClass={name}")


@disk.command()
@on_disk()
def finish(place: Place) -> None:
    """Finish the change of an index that was interrupted."""
    from bookie_pod.storage.index_rebuild.swap import finish as finish_swap

    need_ledgers(place)
    with place.to_change(unclean=True) as stores:
        finished = [finish_swap(place.files, stores, folder) for folder in place.layout.index_folders]
    for purpose in filter(None, finished):
        click.echo(f"Finished: {purpose}")
    if not any(finished):
        click.echo("Nothing was interrupted.")
