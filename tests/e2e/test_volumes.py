"""Bookies with more volumes than two: what lies where, how they grow, and what a loss takes."""

from __future__ import annotations

import re

from tests.e2e.support.lost_volume import lose_and_replace
from tests.support.until import until_true

FILL_SECONDS = 180.0
"""Until every volume has something of its own: ledgers are shared out by their ids."""


def claims(cluster, *volumes: str) -> set[str]:
    return {f"{volume}-{bookie}" for bookie in cluster.pods() for volume in volumes}


def wait_files(cluster, bookie: str, *patterns: str) -> set[str]:
    """All files, once each pattern fits the path of one."""
    seen: set[str] = set()

    def there() -> bool:
        seen.clear()
        seen.update(cluster.files(bookie))
        return all(any(re.fullmatch(each, path) for path in seen) for each in patterns)

    try:
        until_true(there, FILL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"{bookie} has no file for each of {patterns}: {sorted(seen)}") from None
    return seen


def grow(cluster, workload, volume: str, size: str) -> None:
    """All volumes of a kind, without a restart."""
    pods = cluster.uids()
    generation = cluster.change(storage={volume: {"size": size}})
    cluster.wait_ready(600, generation=generation)
    assert cluster.capacities(volume) == {size}
    assert cluster.uids() == pods
    workload.progress()


def test_an_index_volume_of_its_own(make_cluster, make_workload, make_recorder, machine):
    """The index is there and nowhere else; without it a bookie is lost."""
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "index": {"size": "1Gi"}}
    cluster = make_cluster(replicas=4, storage=storage)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        assert set(cluster.claims()) == claims(cluster, "journal-0", "ledger-0", "index-0")
        bookie = f"{cluster.name}-bookie-1"
        index = r"index-0/ledger-0/current/(ledgers|locations)/CURRENT"
        files = wait_files(cluster, bookie, index, r"ledger-0/current/[0-9a-f]+\.log", r"journal-0/current/.+\.txn")
        assert not [path for path in files if path.startswith("ledger-0/") and path.endswith("/CURRENT")]

        grow(cluster, workload, "index", "2Gi")
        assert cluster.capacities("ledger") == {"2Gi"}
        assert not recorder.removals

        lose_and_replace(cluster, machine, workload, bookie, "index-0")
        assert sorted(recorder.gone(bookie)) == [
            "cookie",
            *(f"{name}-0-{bookie}" for name in ("index", "journal", "ledger")),
        ]
        assert cluster.capacities("index") == {"2Gi"}


def test_several_volumes_of_each_kind(make_cluster, make_workload, make_recorder, machine):
    """All are in use; two index volumes are shared by three ledger volumes; one of many that is lost takes the bookie's
    others with it."""
    storage = {
        "journal": {"size": "1Gi", "volumes": 2},
        "ledger": {"size": "1Gi", "volumes": 3},
        "index": {"size": "1Gi", "volumes": 2},
    }
    cluster = make_cluster(replicas=4, storage=storage)
    cluster.wait_ready(300)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        volumes = ("journal-0", "journal-1", "ledger-0", "ledger-1", "ledger-2", "index-0", "index-1")
        assert set(cluster.claims()) == claims(cluster, *volumes)
        bookie = f"{cluster.name}-bookie-2"
        wait_files(
            cluster,
            bookie,
            *(rf"journal-{number}/current/.+\.txn" for number in range(2)),
            *(rf"ledger-{number}/current/[0-9a-f]+\.log" for number in range(3)),
            *(rf"index-{number % 2}/ledger-{number}/current/locations/CURRENT" for number in range(3)),
        )

        grow(cluster, workload, "ledger", "2Gi")
        assert cluster.capacities("journal") == cluster.capacities("index") == {"1Gi"}
        assert not recorder.removals

        lose_and_replace(cluster, machine, workload, bookie, "ledger-1")
        assert sorted(recorder.gone(bookie)) == ["cookie", *sorted(f"{name}-{bookie}" for name in volumes)]
        assert cluster.capacities("ledger") == {"2Gi"}
