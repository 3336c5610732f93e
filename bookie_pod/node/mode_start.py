"""The mode of a bookie at its start, with what an earlier process wrote down (`persistBookieStatusEnabled`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bookie_pod.config.model import BookieConfig
from bookie_pod.node import options
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.status_file import StatusFiles
from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.storage.files import Files


def open_mode(
    config: BookieConfig,
    files: Files,
    admission: WriteAdmission,
    run: Callable[[Awaitable[None]], None],
    on_failure: Callable[[BaseException], None],
    request_flush: Callable[[], None],
) -> BookieMode:
    """Event loop; reads a small file."""
    status = None
    if config.disks.persist_status:
        status = StatusFiles(files, options.current_folders(config.directories.ledger))
    return BookieMode(
        options.mode_options(config),
        admission,
        run,
        on_failure,
        remembered=status.read() if status is not None else None,
        store=status,
        request_flush=request_flush,
    )
