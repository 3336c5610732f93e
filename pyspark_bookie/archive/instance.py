"""The owner of an archive: one cluster, by its instance id.

Ledger numbers mean nothing without their cluster. A cluster that is lost or formatted begins its numbers again, under
another instance id, and what its predecessor left in the archive may be the only copy.

Invariants
- Nothing is written to an archive, and nothing removed from it, by a cluster that it does not belong to.
- Of two clusters that claim one archive at the same time at most one succeeds: each puts its name down before it looks
  for others.

Any thread.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import INSTANCES, TEMPORARY
from pyspark_bookie.archive.reading import archived_ledgers, manifest_at

_AT_A_TIME: Final = 16


def other_owner(files: Files, instance_id: str) -> str | None:
    """Return the instance id of the other cluster that owns the archive; None if this one does, or none. Raises
    `MetadataDamaged`."""
    named = _named(files)
    if named:
        return next((each for each in sorted(named) if each != instance_id), None)
    return _of_manifests(files, instance_id)


def claim(files: Files, instance_id: str) -> str | None:
    """Make the archive this cluster's. Returns and raises as `other_owner`: then it is not."""
    if (other := other_owner(files, instance_id)) is not None or instance_id in _named(files):
        return other
    files.write(f"{INSTANCES}/{instance_id}", b"", f"{TEMPORARY}/{uuid.uuid4().hex}")
    others = _named(files) - {instance_id}
    if others:
        files.delete(f"{INSTANCES}/{instance_id}")
        return min(others)
    return None


def _named(files: Files) -> set[str]:
    return {listed.path.rpartition("/")[2] for listed in files.list(INSTANCES)}


def _of_manifests(files: Files, instance_id: str) -> str | None:
    """Archives of older versions tell it by their manifests alone."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        names = [(each, uuid) for each, attempts in archived_ledgers(files).items() for uuid in attempts]
        for found in pool.map(lambda name: manifest_at(files, *name), names):
            if found is not None and found.instance_id not in (None, instance_id):
                pool.shutdown(cancel_futures=True)
                return found.instance_id
    return None
