"""The bookies' configuration: what stands where, and that a bookie accepts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_operator.builders import config
from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.settings import DYNAMIC_DEFAULTS
from bookie_operator.crds.config_keys import RESERVED
from bookie_pod.config.load import read_config
from bookie_pod.config.model import BookieConfig, all_keys, effective
from bookie_protocol import java_properties as properties
from tests.support.operator_clusters import CASES, MINIMAL, Spec, built, cluster, environment

MIB = 1 << 20


def started(spec: Spec, tmp_path: Path, kind: str = "StatefulSet/demo-bookie") -> BookieConfig:
    """What a pod of this cluster starts with."""
    objects = build(cluster(spec), BuildContext()).objects
    return _loaded(objects[kind], objects, tmp_path)


def _loaded(manifest: Mapping[str, Any], objects: Mapping[str, Any], tmp_path: Path) -> BookieConfig:
    (volume,) = [each for each in manifest["spec"]["template"]["spec"]["volumes"] if each["name"] == "podkeeper-config"]
    file = tmp_path / config.FILE
    file.write_text(objects[f"ConfigMap/{volume['configMap']['name']}"]["data"][config.FILE], encoding="utf-8")
    loaded = read_config(str(file), environment(manifest, objects))
    assert loaded.problems == []
    assert loaded.config is not None
    return loaded.config


@pytest.mark.parametrize("case", CASES)
def test_every_process_accepts_its_configuration(case: str, tmp_path: Path) -> None:
    objects = built(case).objects
    kinds = [
        key for key in objects if key.startswith(("StatefulSet/", "Deployment/")) and not key.endswith("-metadata")
    ]
    assert kinds
    for key in kinds:
        loaded = _loaded(objects[key], objects, tmp_path)
        # A rate of entries under the throttle by bytes, as users may write it: it is named, and nothing else is.
        assert set(loaded.ignored_keys) <= {"compactionRateByEntries"}
        assert not loaded.auto_recovery.daemon_enabled


def test_the_bookie_has_the_name_that_the_planner_knows_it_by(tmp_path: Path) -> None:
    loaded = started(MINIMAL, tmp_path)
    address = f"{loaded.network.advertised_address}:{loaded.network.bookie_port}"
    assert loaded.network.bookie_id is None
    assert address == build(cluster(), BuildContext()).desired().bookie_id("pod-0")


def test_directories_lie_on_their_volumes(tmp_path: Path) -> None:
    storage = {
        "journal": {"size": "1Gi", "volumes": 2},
        "ledger": {"size": "9Gi", "volumes": 3},
        "index": {"size": "1Gi", "volumes": 2},
    }
    loaded = started({**MINIMAL, "storage": storage}, tmp_path).directories
    assert loaded.journal == ("/data/journal-0", "/data/journal-1")
    assert loaded.ledger == ("/data/ledger-0", "/data/ledger-1", "/data/ledger-2")
    assert loaded.index == ("/data/index-0/ledger-0", "/data/index-1/ledger-1", "/data/index-0/ledger-2")


@pytest.mark.parametrize(
    ("resources", "budget"),
    [
        ({"limits": {"memory": "8Gi"}, "requests": {"memory": "1Gi"}}, 3840),
        ({"requests": {"memory": "2G"}}, 2_000_000_000 // 2 // MIB - 256),
        ({"limits": {"memory": "450Mi"}}, 66),
        ({"limits": {"memory": "100Mi"}}, 64),
    ],
)
def test_caches_are_sized_by_the_containers_memory(resources: Any, budget: int, tmp_path: Path) -> None:
    loaded = started({**MINIMAL, "pod": {"resources": resources}}, tmp_path)
    assert loaded.memory.budget_mb == budget
    assert loaded.db_storage.write_cache_max_bytes == budget // 4 * 1024 * 1024


def test_without_limits_the_bookie_looks_for_itself() -> None:
    assert "memoryBudgetMb" in config.static_keys(cluster(MINIMAL))
    assert "memoryBudgetMb" not in config.static_keys(cluster({**MINIMAL, "pod": {"resources": {}}}))
    assert "memoryBudgetMb" not in config.static_keys(
        cluster({**MINIMAL, "pod": {"resources": {"limits": {"cpu": 1}}}})
    )


@pytest.mark.parametrize("size", ["200Mi", "1Gi", "10Gi", "100Gi", "1Ti"])
def test_journals_leave_room_on_their_volume(size: str, tmp_path: Path) -> None:
    loaded = started({**MINIMAL, "storage": {"journal": {"size": size}, "ledger": {"size": size}}}, tmp_path)
    units = {"Mi": 1, "Gi": 1024, "Ti": 1 << 20}
    volume = int(size[:-2]) * units[size[-2:]]
    kept = loaded.journal.max_backups + 2  # the open one, and the one that is made in advance
    assert kept * loaded.journal.max_size_bytes // MIB <= volume // 2
    assert loaded.ledger_storage.log_size_limit_bytes <= max(volume * MIB // 8, 16 * MIB)


def test_the_users_sizes_win(tmp_path: Path) -> None:
    keys = {"journalMaxSizeMB": "100", "journalMaxBackups": "2", "logSizeLimit": "7000000", "memoryBudgetMb": "99"}
    small = {"journal": {"size": "1Gi"}, "ledger": {"size": "1Gi"}}
    loaded = started({**MINIMAL, "config": keys, "storage": small}, tmp_path)
    assert (loaded.journal.max_size_bytes, loaded.journal.max_backups) == (100 * MIB, 2)
    assert (loaded.ledger_storage.log_size_limit_bytes, loaded.memory.budget_mb) == (7_000_000, 99)


def test_bookies_with_tls_serve_nobody_without_unless_the_user_wants_it(tmp_path: Path) -> None:
    tls = {"tls": {"enabled": True, "secretName": "certificate"}}
    for spec, required in ((tls, True), ({**tls, "config": {"tlsRequired": "false"}}, False), ({}, False)):
        assert started({**MINIMAL, **spec}, tmp_path).tls.required == required


def test_a_key_of_the_operator_is_never_the_users(tmp_path: Path) -> None:
    stolen = {"bookiePort": "1", "journalDirectory": "/x", "httpServerPort": "2", "metadataServiceUri": "zk://x"}
    assert set(stolen) <= set(RESERVED)
    assert config.static_keys(cluster({**MINIMAL, "config": stolen})) == config.static_keys(cluster())


def test_every_key_that_the_operator_sets_is_one_that_is_refused_in_spec() -> None:
    set_by_us = {key for view, _ in CASES.values() for key in config.operator_keys(view)}
    assert set_by_us <= set(RESERVED)
    assert len(set_by_us) > 15


def test_zones_are_racks_to_the_placement_of_copies(tmp_path: Path) -> None:
    zones = {"zones": [{"name": "a"}, {"name": "b"}]}
    strict = started(
        {**MINIMAL, "placement": {**zones, "minZonesPerWriteQuorum": 2}}, tmp_path, "StatefulSet/demo-bookie-b"
    )
    assert strict.network.network_location == "/b"
    assert strict.set_keys["enforceMinNumRacksPerWriteQuorum"] == "true"
    assert config.static_keys(cluster({**MINIMAL, "placement": zones}))["enforceMinNumRacksPerWriteQuorum"] == "false"
    assert "ensemblePlacementPolicy" not in config.static_keys(cluster())


def test_keys_that_need_no_restart_reach_the_next_start(tmp_path: Path) -> None:
    keys = {
        "compactionRate": "7",
        "gcWaitTime": "1000",
        "majorCompactionThreshold": " 0.5 ",
        "minorCompactionInterval": "",
    }
    spec = {**MINIMAL, "config": keys}
    loaded = started(spec, tmp_path).gc
    assert loaded.compaction_rate_by_entries == 7
    assert (loaded.wait_time_ms, loaded.major_compaction_threshold, loaded.minor_compaction_interval_s) == (
        1000,
        0.5,
        3600,
    )
    dynamic = build(cluster(spec), BuildContext()).desired().dynamic_config
    assert (
        dynamic.items()
        >= {"compactionRateByEntries": "7", "gcWaitTime": "1000", "majorCompactionThreshold": "0.5"}.items()
    )
    assert not set(dynamic) & set(config.static_keys(cluster(spec)))


def test_no_dynamic_key_has_a_derived_default() -> None:
    """The operator puts a key back to its declared default."""
    assert [name for name in DYNAMIC_DEFAULTS if all_keys()[name][3].derived] == []


def test_nobody_meets_a_key_unasked_that_older_bookies_do_not_know() -> None:
    """They take the map at their next start, whatever release of the operator wrote it."""
    small = {"journal": {"size": "1Gi"}, "ledger": {"size": "1Gi"}}
    unasked = build(cluster({**MINIMAL, "storage": small}), BuildContext()).objects["ConfigMap/demo-bookie-settings"]
    of_the_first_release = {"journalMaxBackups", "journalMaxSizeMB", "logSizeLimit", "lostBookieRecoveryDelay"}
    assert set(unasked["data"]) == of_the_first_release


def test_the_name_of_the_file_follows_its_content_alone() -> None:
    def name(spec: Spec) -> str:
        return str(config.config_map(cluster(spec))["metadata"]["name"])

    assert name({**MINIMAL, "config": {"logLevel": "info", "logFormat": "json"}}) == name(
        {**MINIMAL, "config": {"logFormat": "json", "logLevel": "info"}, "replicas": 9}
    )
    assert name(MINIMAL) != name({**MINIMAL, "config": {"logLevel": "debug"}})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=20), max_size=5))
def test_any_text_survives_the_file(keys: dict[str, str]) -> None:
    assert {pair.key: pair.value for pair in properties.parse(config.properties(keys))} == keys


_KEYS = st.dictionaries(st.text("a=\\ #:\n", min_size=1, max_size=3), st.text("a=\\ #\n", max_size=4), max_size=5)


@given(_KEYS, _KEYS)
def test_between_two_files_the_keys_are_told_that_changed(before: dict[str, str], after: dict[str, str]) -> None:
    differ = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    assert config.changed_keys(config.properties(before), config.properties(after)) == tuple(sorted(differ))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_settings_of_any_key_to_its_default_are_accepted(data: st.DataObject, tmp_path: Path) -> None:
    defaults = {
        key.name: text
        for key, text in effective(BookieConfig())
        if not (set(RESERVED) & {key.name, *key.legacy}) and text not in ("", "********") and not key.derived
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(defaults)), max_size=12))
    loaded = started({**MINIMAL, "config": {name: defaults[name] for name in chosen}}, tmp_path)
    assert chosen - set(DYNAMIC_DEFAULTS) <= set(loaded.set_keys)
