"""The stock Java client, class by class, against a cluster of three bookies."""

from __future__ import annotations

import pytest

from tests.interop.java_programs import junit_classes, run_junit
from tests.support.bookie_process import SORTED_STORAGE

# The reference answers this request only with the sorted or interleaved storage.
_NEEDS_SORTED_AT_REFERENCE = "EntriesOfLedgerTest"


@pytest.mark.parametrize("name", [each for each in junit_classes() if each != _NEEDS_SORTED_AT_REFERENCE])
def test_class(name, class_path, cluster):
    run_junit(class_path, name, cluster.metadata_uri, len(cluster.bookies))
    assert all(bookie.is_running() for bookie in cluster.bookies)


def test_entries_of_ledger(class_path, request, make_cluster, bookie_kind):
    if bookie_kind == "java":
        target = make_cluster()
        for _ in range(3):
            target.bookie(bookie_kind, {"ledgerStorageClass": SORTED_STORAGE}).start()
    else:
        target = request.getfixturevalue("cluster")
    run_junit(class_path, _NEEDS_SORTED_AT_REFERENCE, target.metadata_uri, len(target.bookies))
    assert all(bookie.is_running() for bookie in target.bookies)
