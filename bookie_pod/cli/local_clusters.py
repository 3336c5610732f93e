"""The clusters that `bookie standalone` runs on this machine for this user, so that other commands find them.

Each has a small file in `$XDG_STATE_HOME/podkeeper/clusters` (by default below `~/.local/state`).

Invariants
- `bookie standalone` holds a lock on its file for as long as it lives. A file without a lock is stale, however its
  process ended, and the next look removes it.
- A file of another user is not read.
- An option, BOOKIE_CONF, BOOKIE_URL or BK_metadataServiceUri win: nothing is looked up then.

Any thread.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.shown import one_line

_MAX_BYTES: Final = 64 * 1024
_MAX_FILES: Final = 256
_SUFFIX: Final = ".json"


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that runs."""

    metadata_service: str
    """The URI that clients need."""
    data: str
    """The directory of its bookies."""
    http: tuple[str, ...]
    """URLs of its bookies' HTTP servers."""


@contextmanager
def announced(cluster: LocalCluster) -> Iterator[None]:
    """Let other commands find the cluster within this block. Raises `OSError` if the file cannot be written."""
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A name that no other process has, now or later, in whichever container: who removes a stale file removes no other.
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{_SUFFIX}"
    # Renamed when it is locked and whole, so a reader never takes it for a stale one.
    partial = path.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(asdict(cluster)).encode())
        partial.rename(path)
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def running() -> list[LocalCluster]:
    """The clusters that run now, in the order of their directories. Files that are stale are removed."""
    try:
        files = sorted(each for each in _folder().iterdir() if each.suffix == _SUFFIX)[:_MAX_FILES]
    except OSError:
        return []
    found = [cluster for cluster in map(_read, files) if cluster is not None]
    return sorted(found, key=lambda cluster: cluster.data)


def the_one(remedy: str, named: str | None = None) -> LocalCluster | None:
    """The only cluster that runs here; of several, the one at the URI `named`. None if there is none.

    Raises `InvalidConfiguration` that lists them and ends with the remedy if there are several.
    """
    found = running()
    if named is not None:
        found = [cluster for cluster in found if cluster.metadata_service == named]
    if len(found) > 1:
        listed = ", ".join(one_line(f"{each.metadata_service} (--data {each.data})") for each in found)
        raise InvalidConfiguration(f"{len(found)} clusters run on this machine: {listed}; {remedy}")
    return found[0] if found else None


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "podkeeper" / "clusters"


def _read(path: Path) -> LocalCluster | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return None
        if _is_stale(descriptor):
            path.unlink(missing_ok=True)
            return None
        return _parse(os.read(descriptor, _MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _is_stale(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parse(content: bytes) -> LocalCluster | None:
    try:
        fields = json.loads(content)
        uri, data, http = fields["metadata_service"], fields["data"], fields["http"]
    except (ValueError, TypeError, KeyError):
        return None
    texts: Sequence[object] = [uri, data, *(http if isinstance(http, list) else [None])]
    if not all(isinstance(text, str) for text in texts):
        return None
    return LocalCluster(uri, data, tuple(http))
