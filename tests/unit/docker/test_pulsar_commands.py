"""What the pods of the Apache Pulsar chart run in the image made for them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.image_scripts import load

commands = load("pulsar/commands")


def test_keys_of_the_environment_replace_those_of_the_file_and_only_prefixed_ones_are_added() -> None:
    file = "bookiePort=3181\n# tlsKeyStore=null\n#zkServers = a\nzkServers=b\n# a comment\n\n"
    environment = {
        "zkServers": " zk-0:2181,zk-1:2181 ",
        "tlsKeyStore": "/k",
        "PULSAR_PREFIX_newKey": "x=y",
        "PULSAR_PREFIX_bookiePort": "3182",
        "KUBERNETES_PORT": "tcp://10.0.0.1:443",
    }
    assert commands.applied(file, environment).splitlines() == [
        "bookiePort=3182",
        "tlsKeyStore=/k",
        "#zkServers = a",
        "zkServers=zk-0:2181,zk-1:2181",
        "# a comment",
        "",
        "newKey=x=y",
    ]


def test_a_value_of_several_lines_is_refused_because_it_would_be_several_keys() -> None:
    with pytest.raises(SystemExit, match=r"bookiePort .*line"):
        commands.applied("bookiePort=1\n", {"bookiePort": "1\nallowLoopback=true"})


@pytest.mark.parametrize(
    ("environment", "budget"),
    [
        ({}, None),
        ({"BOOKIE_MEM": "-Xms128m -Xmx256m -XX:MaxDirectMemorySize=256m"}, 256),
        ({"PULSAR_MEM": "-Xmx2g -XX:MaxDirectMemorySize=4G"}, 3072),
        ({"BOOKIE_MEM": "-Xmx64M", "PULSAR_MEM": "-Xmx8g"}, 64),
        ({"BOOKIE_MEM": "-XX:+UseG1GC"}, None),
    ],
)
def test_the_memory_of_a_java_bookie(environment: dict[str, str], budget: int | None) -> None:
    assert commands.memory_budget_mb(environment) == budget


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["bin/pulsar", "bookie"], ["serve"]),
        (["bin/bookkeeper", "bookie"], ["serve"]),
        (["bin/bookkeeper", "autorecovery"], ["autorecovery"]),
        (["bin/bookkeeper", "shell", "listbookies", "-rw"], ["shell", "listbookies", "-rw"]),
    ],
)
def test_what_runs(words: list[str], ours: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda program, words, environment: ran.append((words, environment)))
    monkeypatch.setenv("BOOKIE_MEM", "-Xmx512m -XX:MaxDirectMemorySize=512m")
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    commands.main(words)
    ((made, environment),) = ran
    assert made == ["bookie", *ours]
    assert (environment["BOOKIE_CONF"], environment["BK_memoryBudgetMb"]) == ("conf/bookkeeper.conf", "512")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pulsar", "broker"], "broker"),
        (["pulsar"], "no command"),
        (["pulsar", "shell", "help"], "shell"),
        (["pulsar", "zookeeper-shell", "-server", "h", "rmr", "/x"], "HOSTS ls PATH"),
        (["nslookup", "no-such-name.invalid"], "nslookup: "),
    ],
)
def test_what_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(told)):
        commands.main(words)


def test_a_file_is_changed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bookkeeper.conf"
    file.write_text(Path("docker/pulsar/conf/bookkeeper.conf").read_text())
    monkeypatch.setenv("zkServers", "pulsar-zookeeper:2181")
    commands.main(["bin/apply-config-from-env.py", str(file)])
    assert "\nzkServers=pulsar-zookeeper:2181\n" in file.read_text()


def test_names_are_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    commands.main(["nslookup", "localhost"])
    assert re.search(r"Address: (127\.0\.0\.1|::1)", capsys.readouterr().out)
