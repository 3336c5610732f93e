"""The stock Java client, all classes in one JVM, against a cluster of three bookies."""

from __future__ import annotations

from tests.interop.java_programs import PACKAGE, run_junit
from tests.support.bookie_process import SORTED_STORAGE

# The reference answers this request only with the sorted or interleaved storage.
_NEEDS_SORTED_AT_REFERENCE = f"{PACKAGE}.EntriesOfLedgerTest"


def test_all_other_classes(class_path, cluster):
    others = (f"--select-package={PACKAGE}", f"--exclude-classname={_NEEDS_SORTED_AT_REFERENCE}")
    run_junit(class_path, cluster.metadata_uri, len(cluster.bookies), *others)
    assert all(bookie.is_running() for bookie in cluster.bookies)


def test_entries_of_ledger(class_path, request, make_cluster, bookie_kind):
    if bookie_kind == "java":
        target = make_cluster()
        for _ in range(3):
            target.bookie(bookie_kind, {"ledgerStorageClass": SORTED_STORAGE}).start()
    else:
        target = request.getfixturevalue("cluster")
    run_junit(class_path, target.metadata_uri, len(target.bookies), f"--select-class={_NEEDS_SORTED_AT_REFERENCE}")
    assert all(bookie.is_running() for bookie in target.bookies)
