"""Which directories a command of `bookie disk` works on.

Either those of a configuration (file, environment, `--set`), or those given by flags; then nothing else is read. A
directory is given as it is configured, or as its `current` folder.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click

from bookie_pod.cli.options import config_option, overrides
from bookie_protocol.errors import InvalidConfiguration

Command = TypeVar("Command", bound=Callable[..., Any])

_CURRENT: Final = "current"


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one bookie; made by `on_disk`."""

    layout: Any
    """`storage.inspect.layout.DiskLayout`"""
    config: Any
    """`config.model.BookieConfig`: the defaults, if directories were given by flags."""
    files: Any = field(repr=False)
    """`storage.files.Files`"""
    places: Any = field(default=None, repr=False)
    """`node.identity.places.DirectoryPlaces`, if the directories are those of a configuration."""

    @contextmanager
    def spaces(self) -> Iterator[Any]:
        """Logs and index, read only (`storage.inspect.space.StoredSpaces`)."""
        from bookie_pod.cli.disk.read_only import ReadOnlyStores
        from bookie_pod.storage.inspect.space import StoredSpaces

        with StoredSpaces(self.files, ReadOnlyStores(), self.layout, self.config) as spaces:
            yield spaces

    @contextmanager
    def to_change(self, *, unclean: bool) -> Iterator[Any]:
        """Keeps bookies away; gives databases that can be written (`storage.index_rebuild.swap.DiskStores`).

        `MisplacedDirectory` if the directories are not those that the configuration takes them for.
        """
        from bookie_pod.cli.disk.holders import hold, refuse_if_dirty
        from bookie_pod.storage.index.store import StoreKind
        from bookie_pod.storage.index_rebuild.swap import DiskStores

        if self.places is not None:
            self.places.check()
        stores = DiskStores(self.files)
        locked = any(
            stores.exists(f"{folder}/{kind.value}") for folder in self.layout.index_folders for kind in StoreKind
        )
        if not locked and not unclean:
            refuse_if_dirty(self.layout)
        with hold(self.layout):
            yield stores


def on_disk(*, live: bool = False) -> Callable[[Command], Any]:
    """The options that say which directories; the command gets a `Place` first.

    `live`: the command may also read the plain files of a running bookie, if asked to with `--live`.
    """

    def decorate(command: Command) -> Any:
        @functools.wraps(command)
        def run(
            file: str | None,
            assignments: tuple[str, ...],
            journal_dir: tuple[str, ...],
            ledger_dir: tuple[str, ...],
            index_dir: tuple[str, ...],
            running: bool = False,
            **arguments: Any,
        ) -> Any:
            place = _place(file, assignments, journal_dir, ledger_dir, index_dir)
            if not running:
                from bookie_pod.cli.disk.holders import refuse_if_used

                refuse_if_used(place.layout)
            return command(place, **arguments)

        for option in _options(live):
            run = option(run)
        return run

    return decorate


def _options(live: bool) -> list[Any]:
    options = [
        click.option("--index-dir", multiple=True, metavar="DIR", help="Index directory, if apart."),
        click.option(
            "--ledger-dir", multiple=True, metavar="DIR", help="Ledger directory. Again for another, in order."
        ),
        click.option("--journal-dir", multiple=True, metavar="DIR", help="Journal directory. Again for another."),
        click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Set a configuration key."),
        config_option("The bookie's configuration."),
    ]
    if live:
        text = "Read although a bookie runs. What it writes meanwhile may look torn."
        options.append(click.option("--live", "running", is_flag=True, help=text))
    return options


def _place(
    file: str | None,
    assignments: tuple[str, ...],
    journal_dirs: tuple[str, ...],
    ledger_dirs: tuple[str, ...],
    index_dirs: tuple[str, ...],
) -> Place:
    from bookie_pod.config.model import BookieConfig
    from bookie_pod.config.sections.journal import current_folders
    from bookie_pod.storage.files_posix import PosixFiles
    from bookie_pod.storage.inspect.layout import DiskLayout

    if ledger_dirs or journal_dirs or index_dirs:
        layout = DiskLayout(*(tuple(map(_current, dirs)) for dirs in (journal_dirs, ledger_dirs, index_dirs)))
        return Place(_checked(layout), BookieConfig(), PosixFiles())
    from bookie_pod.config.load import load_config
    from bookie_pod.node.identity.published import directory_places

    config = load_config(file, overrides=overrides(assignments, {}))
    dirs = config.directories
    layout = DiskLayout(
        tuple(current_folders(dirs.journal)), tuple(current_folders(dirs.ledger)), tuple(current_folders(dirs.index))
    )
    remedy = "" if file else "; give the bookie's configuration with -c, or its directories with --ledger-dir"
    files = PosixFiles()
    return Place(_checked(layout, remedy), config, files, directory_places(config, files))


def _current(directory: str) -> str:
    path = directory.rstrip("/") or "/"
    return path if os.path.basename(path) == _CURRENT else os.path.join(path, _CURRENT)


def _checked(layout: Any, remedy: str = "") -> Any:
    for folder in layout.folders:
        if not os.path.isdir(folder):
            raise InvalidConfiguration(
                f"{folder} is not a folder: {os.path.dirname(folder)} is not the directory of a bookie that ever"
                f" started{remedy}"
            )
    return layout


def need_ledgers(place: Place) -> None:
    """`InvalidConfiguration` without ledger directories."""
    if not place.layout.ledgers:
        raise InvalidConfiguration("no ledger directory was named: give --ledger-dir, or the configuration with -c")


def need_journals(place: Place) -> None:
    """`InvalidConfiguration` without journal directories."""
    if not place.layout.journals:
        raise InvalidConfiguration("no journal directory was named: give --journal-dir, or the configuration with -c")
