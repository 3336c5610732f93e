"""The `bookie` command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bookie_pod import logs
from bookie_pod.cli.main import cli, main, run
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.processes import until_signal as termination_log
from bookie_protocol.errors import (
    ExitCode,
    InvalidCookie,
    JournalDamaged,
    NoSuchLedger,
    NotEnoughBookies,
    PodkeeperError,
    QuorumLost,
    RegistrationFailed,
)


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    monkeypatch.setattr(logs, "configure", lambda *arguments: None)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the node: remembers the configuration, answers with what a test puts first."""
    calls: list[Any] = [ExitCode.OK]

    def serve(config: BookieConfig) -> int:
        calls.append(config)
        if isinstance(calls[0], Exception):
            raise calls[0]
        return int(calls[0])

    module = ModuleType("bookie_pod.node.processes.bookie")
    module.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bookie_pod.node.processes.bookie", module)
    return calls


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["version"], ["--version"]):
        assert run(words) == 0
        assert capsys.readouterr().out == f"podkeeper {version('podkeeper')}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["serve", "--help"], ["config", "--help"], ["config", "check", "-h"]]
)
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "Usage: bookie" in capsys.readouterr().out


def test_serve_hands_the_configuration_to_the_node(served: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "bk.conf"
    file.write_text("gcWaitTime=1234\nbookiePort=1111\npasswd=x\n")
    arguments = ["--port", "4444", "--journal-dir", "/j1", "--journal-dir", "/j2", "--set", "zkTimeout=5"]
    assert run(["serve", "--config", str(file), *arguments, "--http-port", "9", "--log-level", "error"]) == 0
    config = served[1]
    assert config.network.bookie_port == 4444
    assert config.directories.journal == ("/j1", "/j2")
    assert (config.gc.wait_time_ms, config.metadata.zk_timeout_ms) == (1234, 5)
    assert config.http.listener.port == config.http.stats_port == 9
    assert config.ignored_keys == ("passwd",)


def test_serve_returns_the_nodes_exit_code(served: list[Any]) -> None:
    served[0] = ExitCode.METADATA_SESSION_EXPIRED
    assert run(["serve"]) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["serve", "--set", "zkTimeout=never"], "zkTimeout=never"),
        (["serve"], "/journal has no cookie"),
        (["autorecovery", "--set", "autoRecoveryNiceness=0"], "metadataServiceUri is not set"),
        (["gateway"], "metadataServiceUri is not set"),
        (["metadata-service", "--data", "/dev/null/x"], "/dev/null/x"),
    ],
)
def test_the_reason_of_the_end_is_told_to_kubernetes(
    served: list[Any],
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(termination_log, "PATH", str(tmp_path / "termination-log"))
    (tmp_path / "termination-log").write_text("of an earlier end")
    served[0] = InvalidCookie("/journal has no\n  cookie")
    assert run([*arguments, "--http-port", "0"]) != 0
    told = (tmp_path / "termination-log").read_text()
    assert reason in told
    assert capsys.readouterr().err.endswith(f"bookie: {told}")


def test_other_commands_in_a_container_leave_its_message_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook or a probe that fails is not the end of the bookie."""
    monkeypatch.setattr(termination_log, "PATH", str(tmp_path / "termination-log"))
    (tmp_path / "termination-log").touch()
    assert run(["config", "check", str(tmp_path / "none")]) != 0
    assert run(["drain-clients", "--config", str(tmp_path / "none")]) != 0
    assert (tmp_path / "termination-log").read_text() == ""


def test_configuration_file_from_the_environment(
    served: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bk.conf").write_text("bookiePort=1111\n")
    monkeypatch.setenv("BOOKIE_CONF", str(tmp_path / "bk.conf"))
    monkeypatch.setenv("BK_gcWaitTime", "77")
    assert run(["serve"]) == 0
    assert (served[1].network.bookie_port, served[1].gc.wait_time_ms) == (1111, 77)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JournalDamaged("journal 1.txn:\n  offset 512 is damaged"), 5),
        (RegistrationFailed("id taken"), 4),
    ],
)
def test_a_startup_error_is_one_line(
    served: list[Any], error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    served[0] = error
    assert run(["serve"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == f"bookie: {' '.join(str(error).split())}"
    assert sum(line.startswith("bookie:") for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "bookiePrt=1"], "bookie: --set: unknown configuration key bookiePrt; did you mean bookiePort?"),
        (["--config", "/nowhere/x"], "bookie: configuration file /nowhere/x: No such file or directory"),
        (["--set", "permittedStartupUsers=nobody-here"], "bookie: permittedStartupUsers=nobody-here: the bookie was"),
    ],
)
def test_bad_configuration_does_not_reach_the_node(
    served: list[Any], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == ExitCode.INVALID_CONFIGURATION
    assert len(served) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bookie:")]
    assert line.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "bookiePort"], "--set: must look like key=value"),
        (["--set", "bookiePort=1", "--port", "2"], "bookiePort is set twice"),
        (["--set", "a=1", "--set", "a=2"], "a is set twice"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_command_line(
    served: list[Any], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == ExitCode.INVALID_CONFIGURATION
    assert message in capsys.readouterr().err
    assert len(served) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["shell", "\n"], 1, "bookie: Apache's shell has no command ; `bookie shell help` lists them"),
        (["config", "docs", "--write", ""], 12, "bookie: a file without a name: No such file or directory"),
        (
            ["cluster", "cookie", "generate", "-j", "/j", "-l", "/l", "-i", "\udcff", "-o", "{}/cookie", "b:1"],
            1,
            "bookie: '�' is not text in UTF-8: correct it",
        ),
    ],
)
def test_whatever_a_command_line_has_ends_in_one_line(
    arguments: list[str], code: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([each.format(tmp_path) for each in arguments]) == code
    assert capsys.readouterr().err.splitlines() == [told]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "encoding", "printed"),
    [
        (b"\xff", "utf-8", b"\xff"),
        ("\N{EURO SIGN}".encode(), "utf-8", "\N{EURO SIGN}".encode()),
        ("\N{EURO SIGN}".encode(), "latin-1", b"\\u20ac"),
        (b"\xff", "latin-1", b"\\udcff"),
    ],
)
def test_names_of_files_are_printed_as_they_are_or_escaped(
    name: bytes, encoding: str, printed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("journal", "ledgers"):
        (tmp_path / folder / "current").mkdir(parents=True)
    (tmp_path / "ledgers" / "current" / os.fsdecode(name + b".log")).touch()
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding, "strict"))
    with pytest.raises(SystemExit) as ended:
        main(["disk", "files", f"--journal-dir={tmp_path}/journal", f"--ledger-dir={tmp_path}/ledgers"])
    assert (ended.value.code, b"/current/" + printed + b".log\n" in output.getvalue()) == (0, True)


def test_config_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bk.conf"
    file.write_text("bookiePrt=1\ngcWaitTime=x\n")
    assert run(["config", "check", str(file)]) == 1
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == 2
    file.write_text("passwd=1\nmetadataServiceUri=zk://zk1/ledgers\nbookieId=b1\n")
    assert run(["config", "check", str(file)]) == 0
    ignored, valid, *may = capsys.readouterr().out.splitlines()
    assert (ignored, valid) == ("passwd: has no meaning here and is ignored", "The configuration is valid.")
    assert {line.split(" (")[0] for line in may} == {"port 3181", "port 8000", "port 3182"}


def test_config_check_tells_who_may_do_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, tokens = tmp_path / "bk.conf", tmp_path / "tokens"
    tokens.write_text("the-token-of-operations admin ops\nthe-token-of-dashboards viewer dashboards\n")
    file.write_text(f"metadataServiceUri=zk://zk1/ledgers\nbookieId=b1\nhttpServerAuthTokenFile={tokens}\n")
    assert run(["config", "check", str(file)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "port 8000 (httpServerPort): ops: admin" in told
    assert "port 8000 (httpServerPort): dashboards: viewer" in told
    assert "port 3182 (grpcServerPort): everybody: viewer" in told
    assert not any("the-token-of" in line for line in told)


@pytest.mark.parametrize(
    "setting",
    [
        "httpServerAuthTokenFile={}",
        "grpcServerAuthTokenFile={}",
        "bookieAuthProviderFactoryClass=dev.podkeeper.SharedToken\n"
        "clientAuthProviderFactoryClass=dev.podkeeper.SharedToken\nauthTokenFile={}",
        "metadataServiceTokenFile={}",
    ],
)
def test_config_check_refuses_a_file_in_which_a_token_is_missing(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, tokens = tmp_path / "bk.conf", tmp_path / "tokens"
    tokens.write_text("viewer\n")  # `echo "$(a command that failed) viewer"`
    file.write_text(f"metadataServiceUri=zk://zk1/ledgers\nbookieId=b1\n{setting.format(tokens)}\n")
    assert run(["config", "check", str(file)]) == 1
    assert "line 1" in capsys.readouterr().err


def test_config_check_finds_what_a_start_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bk.conf"
    file.write_text(
        f"reppDnsResolverClass=com.example.Mine\ntlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory\n"
        f"tlsKeyStoreType=PEM\ntlsTrustStoreType=PEM\ntlsKeyStore={tmp_path}/none\ntlsCertificatePath={tmp_path}/none\n"
        f"zkAuthCredentialsPath={tmp_path}/none\nbookieId=..\n"
    )
    assert run(["config", "check", str(file)]) == 1
    told = capsys.readouterr()
    for named in ("metadataServiceUri", "zkAuthCredentialsPath", "bookieId", "reppDnsResolverClass", "tlsKeyStore"):
        assert sum(named in line for line in told.err.splitlines()) == 1, (named, told.err)
    assert "is valid" not in told.out


def test_config_print_can_be_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "print", "--set", "bookiePort=7", "--set", "memoryBudgetMb=100"]) == 0
    printed = capsys.readouterr().out
    assert "dbStorage_writeCacheMaxSizeMb=25\n" in printed
    (tmp_path / "bk.conf").write_text("".join(line for line in printed.splitlines(True) if not line.endswith("=\n")))
    assert run(["config", "print", str(tmp_path / "bk.conf")]) == 0
    assert capsys.readouterr().out == printed
    assert run(["config", "print", "--json", "--set-only", "--set", "bookiePort=7"]) == 0
    assert json.loads(capsys.readouterr().out) == {"bookiePort": "7"}


def test_config_docs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "docs"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# Configuration")
    assert run(["config", "docs", "--write", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == page


def test_the_start_loads_nothing_heavy() -> None:
    heavy = ("aiohttp", "grpc", "structlog", "rich", "rocksdict", "kazoo", "asyncio", "bookie_pod.config.model")
    code = f"import sys, bookie_pod.cli.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_module_runs() -> None:
    command = [sys.executable, "-m", "bookie_pod.cli.main", "serve", "--set", "bookiePort=99999"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": ""})
    assert result.returncode == 1
    assert result.stderr == "bookie: bookiePort=99999: must be at most 65535 (--set)\n"


@pytest.mark.parametrize(
    ("error", "hints"), [(QuorumLost("x"), True), (NotEnoughBookies("x"), True), (NoSuchLedger("x"), False)]
)
def test_too_few_bookies_are_told_with_what_finds_them(
    error: PodkeeperError, hints: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**settings: object) -> None:
        raise error

    monkeypatch.setattr(cli, "main", fail)
    run([])
    (line,) = capsys.readouterr().err.splitlines()
    assert ("health-check" in line) == hints
