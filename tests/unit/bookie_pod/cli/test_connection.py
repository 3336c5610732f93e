"""How commands find their cluster, their client's options, passwords, and exit codes."""

import pytest

from bookie_client import ClientOptions
from bookie_pod.cli.connection import Connection, client_options
from bookie_pod.cli.exit_codes import exit_code_of
from bookie_pod.cli.main import run
from bookie_pod.cli.options import read_password
from bookie_protocol.errors import (
    BookieUnavailable,
    InvalidConfiguration,
    LedgerFenced,
    MetadataNotFound,
    MetadataUnavailable,
    NoSuchLedger,
    QuorumLost,
    ServerStartFailed,
)


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in ("BK_metadataServiceUri", "BOOKIE_CONF", "BOOKIE_LEDGER_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    # Commands that run in this process must not leave their log set up: its stream is gone after the test.
    monkeypatch.setattr("bookie_pod.logs.configure", lambda *settings: None)


def uri(given=None, file=None):
    return Connection(given, file, (), 1.0).uri()


def test_the_flag_wins_over_the_environment_and_the_environment_over_the_file(tmp_path, monkeypatch):
    (tmp_path / "bk.conf").write_text("metadataServiceUri=zk+null://file/ledgers\n")
    file = str(tmp_path / "bk.conf")
    assert uri(file=file) == "zk+null://file/ledgers"
    monkeypatch.setenv("BK_metadataServiceUri", "zk+null://environment/ledgers")
    assert uri() == uri(file=file) == "zk+null://environment/ledgers"
    assert uri("zk+null://flag/ledgers", file) == "zk+null://flag/ledgers"


def test_without_any_the_line_says_what_to_do(capsys):
    assert run(["ledger", "list"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert all(way in line for way in ("bookie standalone", "--metadata URI", "BK_metadataServiceUri", "--config FILE"))


def test_a_metadata_service_that_is_not_there(capsys):
    assert run(["ledger", "list", "--metadata", "embedded://127.0.0.1:1/ledgers", "--timeout", "0.2"]) == 12
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bookie: the metadata service embedded://127.0.0.1:1/ledgers does not answer")


def test_options_of_the_client():
    settings = ("protocol_version=2", "add_timeout=1.5", "delay_ensemble_change=true", "max_ensemble_changes=none")
    made = client_options(settings, {"write_window_entries": 7, "add_timeout": 9.0})
    assert made == ClientOptions(
        protocol_version=2, add_timeout=1.5, delay_ensemble_change=True, write_window_entries=7
    )


@pytest.mark.parametrize("setting", ["nonsense=s3cret", "add_timeout=s3cret", "protocol_version=s3cret", "auth=s3cret"])
def test_options_that_are_none(setting):
    with pytest.raises(InvalidConfiguration, match=f"^--client {setting.partition('=')[0]}: ") as caught:
        client_options((setting,), {})
    assert "s3cret" not in str(caught.value)


def test_a_word_that_is_no_option_is_not_repeated():
    with pytest.raises(InvalidConfiguration, match=r"^--client: .*OPTION=VALUE") as caught:
        client_options(("s3cret",), {})
    assert "s3cret" not in str(caught.value)


def test_passwords_come_from_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "password"
    file.write_bytes(b"from the file\n")
    assert read_password(None) == b""
    monkeypatch.setenv("BOOKIE_LEDGER_PASSWORD", "from the environment")
    assert read_password(None) == b"from the environment"
    assert read_password(str(file)) == b"from the file"
    file.write_bytes(b"\n\n")
    assert read_password(str(file)) == b"\n"
    with pytest.raises(InvalidConfiguration, match="No such"):
        read_password(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidConfiguration, 1),
        (ServerStartFailed, 2),
        (LedgerFenced, 10),
        (NoSuchLedger, 11),
        (MetadataNotFound, 11),
        (MetadataUnavailable, 12),
        (BookieUnavailable, 12),
        (QuorumLost, 12),
    ],
)
def test_exit_codes_tell_what_a_script_does_next(error, code):
    assert exit_code_of(error("x")) == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ledger", "read", "x"], "'x' is not a valid integer"),
        (["ledger", "write", "--property", "novalue", "-m", "/x"], "--property: must look like name=value"),
        (["ledger", "delete", "1"], "there is no terminal: give --yes"),
        (["stream", "truncate", "s", "--before", "1:0"], "there is no terminal: give --yes"),
        (["standalone"], "Missing option '--data'"),
    ],
)
def test_wrong_command_lines(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    assert run(arguments) == 1
    assert message in capsys.readouterr().err


def test_login_tls_and_frame_size_of_the_configuration_count_whoever_names_the_cluster(tmp_path, monkeypatch):
    (tmp_path / "bk.conf").write_text(
        "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
        "tlsTrustStore=/trusted.pem\n"
        "zkAuthCredentialsPath=/login\n"
        "nettyMaxFrameSizeBytes=20000000\n"
    )
    connection = Connection("zk+null://flag/ledgers", str(tmp_path / "bk.conf"), ())
    configured = connection._configured()
    assert (configured["tls"].ca_file, configured["max_frame_size"]) == ("/trusted.pem", 20_000_000)
    assert connection.configuration.metadata.zk_auth_credentials_path == "/login"
    alone = Connection("zk+null://flag/ledgers", None, ())
    assert alone._configured() == {"tls": None, "auth": None}
    assert alone.configuration.metadata.zk_auth_credentials_path is None
    monkeypatch.setenv("BK_zkAuthCredentialsPath", "/other")
    by_environment = Connection("zk+null://flag/ledgers", None, ())
    assert by_environment.configuration.metadata.zk_auth_credentials_path == "/other"
    monkeypatch.delenv("BK_zkAuthCredentialsPath")
    monkeypatch.setenv("BK_metadataServiceTokenFile", "/token")
    assert Connection("embedded://flag:1/ledgers", None, ()).configuration.metadata.token_file == "/token"


async def rule_of_placement(cluster):
    return cluster.client.placement.rule


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ("", "rack-aware: write sets on at least 2 racks, relaxed when it must be"),
        (
            "ensemblePlacementPolicy=org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy\n"
            "minNumRacksPerWriteQuorum=3\nenforceMinNumRacksPerWriteQuorum=true\n",
            "rack-aware: write sets on at least 3 racks, enforced",
        ),
        (
            "ensemblePlacementPolicy=LocalBookieEnsemblePlacementPolicy\nbookieId=bookie-7\n",
            "local: bookie bookie-7 only",
        ),
    ],
    ids=["nothing set", "racks", "the bookie itself"],
)
def test_the_placement_of_the_configuration_counts(lines, rule, tmp_path, capsys):
    uri = str(tmp_path / "metadata")
    assert run(["cluster", "init", uri]) == 0
    (tmp_path / "bk.conf").write_text(f"metadataServiceUri={uri}\n{lines}")
    assert Connection(None, str(tmp_path / "bk.conf"), ()).run(rule_of_placement) == rule
    capsys.readouterr()


def test_a_placement_that_is_not_known_is_a_line_about_the_configuration(tmp_path, capsys):
    (tmp_path / "bk.conf").write_text(
        f"metadataServiceUri={tmp_path}/metadata\nensemblePlacementPolicy=com.example.Own\n"
    )
    assert run(["ledger", "create", "--config", str(tmp_path / "bk.conf")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bookie: ensemblePlacementPolicy com.example.Own is not known")
