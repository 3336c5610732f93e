"""Sources, their priority, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.config.load import load_config, read_config
from bookie_pod.config.model import BookieConfig, all_keys, effective
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_protocol.errors import ExitCode, InvalidConfiguration

STOCK_STYLE = os.path.join(os.path.dirname(__file__), "data", "bk_server.conf")


def load(**settings: str) -> BookieConfig:
    return load_config(environ={}, overrides=settings)


def problems(text: str, tmp_path: Path, environ: dict[str, str] | None = None) -> list[str]:
    path = tmp_path / "bk.conf"
    path.write_text(text)
    return [line.replace(str(tmp_path), "") for line in read_config(str(path), environ or {}).problems]


def test_a_file_in_apaches_style_is_taken_as_it_is() -> None:
    config = load_config(STOCK_STYLE, environ={})
    assert config.directories.journal == ("/mnt/journal",)
    assert config.directories.ledger == config.directories.index_or_ledger == ("/mnt/ledgers-1", "/mnt/ledgers-2")
    assert config.metadata.service_uri == "zk+null://zk-1:2181;zk-2:2181/ledgers"
    assert config.metadata.zk_retry_backoff_max_ms == 30_000
    assert config.network.use_host_name_as_bookie_id
    assert config.network.advertised_address is None
    assert config.gc.compaction_rate_by_entries == 1500
    assert config.ledger_storage.engine is StorageEngine.DB
    assert config.ignored_keys == (
        "byteBufAllocatorSizeMax",
        "codahaleStatsPrefix",
        "compactionRateByEntries",  # it throttles by bytes
        "fileInfoFormatVersionToWrite",  # this one, and two below, are about index files, which its engine has not
        "httpServerClass",
        "openFileLimit",
        "pageLimit",
        "statsProviderClass",
        "stickyReadSEnabled",
        "storageserver.grpc.port",
        "useV2WireProtocol",
    )


def test_http_of_apaches_file_is_the_prometheus_listener() -> None:
    listener = load_config(STOCK_STYLE, environ={}).http.listener
    assert listener is not None
    assert (listener.port, listener.port_key, listener.admin) == (8000, "prometheusStatsHttpPort", False)
    default = load().http.listener
    assert default is not None
    assert (default.port, default.port_key, default.admin) == (8000, "httpServerPort", True)
    assert load(httpServerEnabled="false", prometheusStatsHttpEnable="false").http.listener is None


def test_priority_rises_from_file_over_environment_to_flags() -> None:
    environ = {"BK_gcWaitTime": "1000", "BK_zkTimeout": "2000", "UNRELATED": "x"}
    config = load_config(STOCK_STYLE, environ, {"zkTimeout": "3000"})
    assert (config.gc.wait_time_ms, config.metadata.zk_timeout_ms) == (1000, 3000)
    assert config.set_keys["gcWaitTime"] == "1000"
    assert config.set_keys["bookiePort"] == "3181"
    assert "flushInterval" not in config.set_keys


def test_an_older_name_loses_in_its_own_source_and_wins_from_a_later_one(tmp_path: Path) -> None:
    path = tmp_path / "bk.conf"
    path.write_text("journalDirectories=/new\njournalDirectory=/old\n")
    assert load_config(str(path), {}).directories.journal == ("/new",)
    assert load_config(str(path), {"BK_journalDirectory": "/env"}).directories.journal == ("/env",)


def test_metadata_service_uri_and_zk_servers() -> None:
    both = {"metadataServiceUri": "zk://a:1/x", "zkServers": "b:1"}
    assert load(**both).metadata.service_uri == "zk://a:1/x"
    from_environment = load_config(environ={"BK_metadataServiceUri": "zk://a:1/x"}, overrides={"zkServers": "b:1"})
    assert from_environment.metadata.service_uri == "zk+null://b:1/ledgers"
    hierarchical = load(
        zkServers="b:1,c:1",
        zkLedgersRootPath="/p/ledgers",
        ledgerManagerFactoryClass="org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
    )
    assert hierarchical.metadata.service_uri == "zk+longhierarchical://b:1;c:1/p/ledgers"
    assert load().metadata.service_uri is None


def test_environment_of_the_container_image() -> None:
    config = load_config(environ={"BK_DATA_DIR": "/data", "BK_CLUSTER_ROOT_PATH": "/prod", "BK_zkServers": "z:1"})
    directories = config.directories
    assert (directories.journal, directories.ledger) == (("/data/journal",), ("/data/ledgers",))
    assert directories.index == ("/data/index",)
    assert config.metadata.service_uri == "zk+null://z:1/prod/ledgers"
    own = load_config(environ={"BK_DATA_DIR": "/data", "BK_journalDirectory": "/fast"})
    assert own.directories.journal == ("/fast",)


def test_a_number_set_to_nothing_is_not_set(tmp_path: Path) -> None:
    path = tmp_path / "bk.conf"
    path.write_text("dbStorage_writeCacheMaxSizeMb=\ngcWaitTime=5000\nmemoryBudgetMb=80\nledgerStorageClass= \n")
    config = load_config(str(path), {"BK_gcWaitTime": ""})
    assert (config.db_storage.write_cache_max_bytes, config.gc.wait_time_ms) == (20 * 1024 * 1024, 5000)
    assert "dbStorage_writeCacheMaxSizeMb" not in config.set_keys


def test_directories_set_to_nothing_do_not_become_temporary_ones(tmp_path: Path) -> None:
    assert problems("journalDirectories=", tmp_path) == ["journalDirectories=: at least one directory is needed"]


def test_names_that_kubernetes_injects_are_left_alone() -> None:
    environ = {"BK_PORT": "tcp://10.0.0.1:3181", "BK_SERVICE_HOST": "10.0.0.1", "BK_HOME": "/opt", "BK_": "x"}
    assert load_config(environ=environ).set_keys == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x=1\n\nbookiePrt=3181", "/bk.conf:3: unknown configuration key bookiePrt; did you mean bookiePort?"),
        ("zzzzqqqq=1", "/bk.conf:1: unknown configuration key zzzzqqqq; see docs/configuration.md for the known keys"),
        ("bookiePort=many", "bookiePort=many: must be a whole number (/bk.conf:1)"),
        ("bookiePort=1\nbookiePort=2", "/bk.conf:2: bookiePort is set to another value in line 1"),
        ("a=\\u00", "/bk.conf:1: malformed \\u escape: four hexadecimal digits must follow"),
        ("httpServerKeyStorePassword=${x}", "httpServerKeyStorePassword=********: a reference ${...} is not expanded"),
    ],
)
def test_each_problem_names_place_and_remedy(text: str, problem: str, tmp_path: Path) -> None:
    assert any(line.startswith(problem) for line in problems(text, tmp_path)), problems(text, tmp_path)


def test_a_mixed_case_name_in_the_environment_is_a_typing_error(tmp_path: Path) -> None:
    assert problems("", tmp_path, {"BK_jornalDirectories": "/x"}) == [
        "environment BK_jornalDirectories: unknown configuration key jornalDirectories; "
        "did you mean journalDirectories?"
    ]


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"none\.conf: No such"):
        load_config(str(tmp_path / "none.conf"), {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe=")
    with pytest.raises(InvalidConfiguration, match="not UTF-8"):
        load_config(str(tmp_path / "binary"), {})


def test_one_line_with_the_number_of_further_problems() -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        load(bookiePrt="1", gcWaitTime="x")
    assert raised.value.exit_code is ExitCode.INVALID_CONFIGURATION
    assert str(raised.value).endswith("(and 1 more: see `bookie config check`)")
    assert "\n" not in str(raised.value)


def test_secrets_are_not_shown() -> None:
    config = load(httpServerKeyStorePassword="hunter2")
    assert "hunter2" not in str(dict(config.set_keys))
    shown = {declared.name: text for declared, text in effective(config)}
    assert shown["httpServerKeyStorePassword"] == "********"
    assert config.http.key_store_password == "hunter2"


def test_effective_values_load_again_to_the_same_configuration() -> None:
    config = load_config(STOCK_STYLE, environ={})
    again = load(**{declared.name: text for declared, text in effective(config) if text})
    for name in ("network", "journal", "db_storage", "rocksdb", "gc", "disks", "http", "metadata", "directories"):
        assert getattr(again, name) == getattr(config, name), name


@given(st.dictionaries(st.sampled_from(sorted(all_keys())), st.text(max_size=12), max_size=6))
def test_no_text_escapes_the_checks(settings: dict[str, str]) -> None:
    loaded = read_config(environ={}, overrides=settings)
    assert (loaded.config is None) == bool(loaded.problems)
