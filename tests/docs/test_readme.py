"""README.md where a newcomer stands: a wheel in an environment of its own, nothing activated, nothing set.

Its commands are run word by word, but for addresses and folders; so is what newcomers mistype.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.docs.examples import Block, blocks
from tests.support.chart_files import ROOT
from tests.support.installed import Installed
from tests.support.until import until_true

README = ROOT / "README.md"
BLOCKS = blocks(README)
ELSEWHERE = {
    "make run": "tests/process/test_trial.py, and the ring itself",
    "venv/bin/pip install": "the fixtures: an environment from a wheel, and its `bookie standalone`",
    "make try-kubernetes": "tests/e2e/test_try_kubernetes.py",
    "kubectl create namespace": "tests/e2e, tests/unit/examples",
    "bookie cluster init": "tests/process/test_first_contact.py",
    "ClientConfiguration conf": "tests/interop",
}
"""Blocks by their beginnings, and what runs them in the place of this module."""


def block(beginning: str) -> str:
    (found,) = [each.code for each in BLOCKS if each.code.startswith(beginning)]
    return found


class Cluster:
    """`bookie standalone` as the README starts it, at free ports."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed
        self.data = installed.directory / "data"
        words = ["standalone", "--data", str(self.data), "--metadata-port", "0", "--grpc-port", "0"]
        self.output = installed.directory / "standalone.out"
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [installed.command("bookie"), *words],
                env=installed.variables(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until_true(lambda: b"Ctrl-C" in self.output.read_bytes() or self._process.poll() is not None, 100)
        text = self.output.read_text()
        assert self._process.poll() is None, text
        self.uri = re.findall(r"embedded://\S+", text)[0]
        self.http = re.findall(r"http://127\.0\.0\.1:\d+", text)[0]

    def here(self, code: str) -> str:
        """The code of the README with this cluster's addresses and folders."""
        replaced = {
            "embedded://127.0.0.1:3180/ledgers": self.uri,
            "http://127.0.0.1:8000": self.http,
            "/var/tmp/": f"{self._installed.directory}/",
        }
        for text, other in replaced.items():
            code = code.replace(text, other)
        return code

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def cluster(installed: Installed) -> Iterator[Cluster]:
    made = Cluster(installed)
    yield made
    assert made.stop() == 0


def shell(installed: Installed, code: str) -> subprocess.CompletedProcess[str]:
    """Run lines of README where the environment is the folder `venv`."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env=installed.variables(),
        cwd=installed.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_every_block_is_run_somewhere() -> None:
    here = ("seq 1 100000", "seq 1 100 |", "import asyncio", "from pyspark.sql")
    for each in BLOCKS:
        if each.language != "text":
            assert each.code.startswith((*here, *ELSEWHERE)), f"README.md:{each.line} is run by no test"
    assert len([each for each in BLOCKS if isinstance(each, Block)]) >= len(here) + len(ELSEWHERE)


@pytest.mark.timeout(300)
def test_commands_in_another_terminal(installed: Installed, cluster: Cluster) -> None:
    """Among them the only ledger is deleted, and a pass of garbage collection gives its space back."""
    done = shell(installed, cluster.here(block("seq 1 100000")))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["0", "100000"]
    assert "healthy" in done.stdout
    assert "Triggered GC" in done.stdout
    logs = cluster.data / "bookie-1" / "ledgers" / "current"
    until_true(lambda: sum(each.stat().st_size for each in logs.glob("*.log")) < 10_000, 60)


def test_python(installed: Installed, cluster: Cluster) -> None:
    program = installed.directory / "hello.py"
    program.write_text(cluster.here(block("import asyncio")))
    done = installed.run("python", str(program))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 b'hello'\n", "")


@pytest.mark.timeout(400)
def test_spark(installed: Installed, cluster: Cluster) -> None:
    done = shell(installed, cluster.here(block("seq 1 100 |")))
    assert done.returncode == 0, done.stderr
    program = installed.directory / "orders.py"
    program.write_text(cluster.here(block("from pyspark.sql")))
    done = installed.run("python", str(program), seconds=300)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["100"]), done.stderr
    copied = installed.run("bookie", "stream", "read", "orders-copy")
    assert copied.stdout.split() == [str(number) for number in range(1, 101)], copied.stderr


def test_help_and_completion_need_nothing(installed: Installed) -> None:
    for words in (["--help"], ["completion", "bash"], ["version", "--json"]):
        done = installed.run("bookie", *words)
        assert (done.returncode, done.stderr) == (0, "")


MISTAKES: list[tuple[str, int, str]] = [
    ("ledger raed 0", 1, "read"),
    ("ledger read 0 --formt json", 1, "--format"),
    ("ledger read", 1, "LEDGER"),
    ("ledger read zero", 1, "zero"),
    ("ledger read 4711", 11, "4711"),
    ("ledger write /no/such/file", 1, "/no/such/file"),
    ("ledger write --ensemble 9", 10, "9"),
    ("ledger write --ensemble 2 --write-quorum 3", 10, "3"),
    ("ledger write --property x", 1, "--property"),
    ("ledger list --metadata zookeeper://x/ledgers", 1, "zookeeper"),
    ("ledger list --metadata zk1:2181", 1, "zk1:2181"),
    ("ledger list --metadata embedded://127.0.0.1:1/ledgers --timeout 0.3", 12, "does not answer"),
    ("ledger list --timeout never", 1, "never"),
    ("ledger list --client add_timeout=soon", 1, "add_timeout"),
    ("ledger delete 0", 1, "--yes"),
    ("stream read no-such-stream", 11, "no-such-stream"),
    ("gc why 99.log", 11, "99.log"),
    ("gc status --url 127.0.0.1:8000", 1, "127.0.0.1:8000"),
    ("gc status --url http://127.0.0.1:1", 12, "127.0.0.1:1"),
    ("ledger info 4711", 11, "4711"),
    ("config check /no/such/file", 1, "/no/such/file"),
    ("standalone --data /proc/x", 1, "/proc/x"),
    ("standalone --data /tmp/x --http-port 99999", 1, "99999"),
    ("serve --set bookieport=1", 1, "bookiePort"),
    ("shell listbookie", 1, "listbookie"),
]


@pytest.mark.parametrize(("words", "code", "names"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_mistake(installed: Installed, cluster: Cluster, words: str, code: int, names: str) -> None:
    """Is told in words that name it, without a traceback, and with the exit code of its kind."""
    done = installed.run("bookie", *words.split())
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert names in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 4  # click adds the usage of the command


def test_bookies_on_a_list_have_their_addresses(installed: Installed, cluster: Cluster) -> None:
    found = [json.loads(line) for line in installed.run("bookie", "cluster", "bookies", "--json").stdout.splitlines()]
    assert [each["state"] for each in found] == ["writable"] * 3
