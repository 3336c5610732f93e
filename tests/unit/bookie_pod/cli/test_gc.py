"""`bookie gc` against a server of the admin API over fake ports, and against what Apache's bookie answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.main import run
from bookie_pod.cli.tables import size_text
from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.reports import LogReport, PassResult
from bookie_pod.storage.gc.schedule import Compaction
from bookie_protocol.errors import StorageFault
from tests.support.bookie_process import free_port
from tests.support.fake_admin import gc_state
from tests.support.served_admin import ServedAdmin as Served

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[3] / "golden" / "http-admin-api.json"


def refusal(capsys: Capture) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("bookie: ")
    return line.removeprefix("bookie: ")


def test_status(served: Served, capsys: Capture) -> None:
    done = PassResult(1, 2, 3, 4_500_000, Compaction.MAJOR, ["entry log 3.log: no space"])
    waiting = gc_state(
        phase="measuring entry logs", done=4, total=1200, force_compacting=True, last_pass=done, major_suspended=True
    )
    served.admin.gc.major_suspended = True
    served.admin.gc.collectors = [
        ("/data/a", waiting),
        ("/data/b", gc_state(minor_compacting=True, minor_count=5, last_minor_ms=1_000_000_000_000)),
    ]
    assert run(["gc", "status"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "/data/a",
        "measuring entry logs, 4 of 1,200 logs (forced)",
        "suspended, none so far",
        "1 ledgers and 2 logs deleted, 3 logs compacted (major compaction), 4.5 MB given back, 1 errors",
        "entry log 3.log: no space",
        "/data/b",
        "runs, 5 so far, the last at 2001-09-09 01:46:40 UTC",
    ):
        assert text in shown
    assert run(["gc", "status", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["directory"], first["majorSuspended"], first["lastPass"]["logsDeleted"]) == ("/data/a", True, 2)
    assert second["minorCompactionCounter"] == 5


def test_watching_tells_changes_only(served: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from bookie_pod.cli import gc

    looks = iter(["waiting", "waiting", "deleting ledgers"])

    def sleep(seconds: float) -> None:
        assert seconds == gc.WATCH_S
        try:
            served.admin.gc.collectors = [("/data", gc_state(phase=next(looks)))]
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(gc, "time", SimpleNamespace(sleep=sleep))
    served.admin.gc.collectors = [("/data", gc_state())]
    assert run(["gc", "status", "--watch", "--json"]) == CommandExit.INTERRUPTED
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)[0]["phase"] for line in lines] == ["waiting", "deleting ledgers"]


@pytest.mark.parametrize(
    ("options", "forced"),
    [([], (None, None)), (["--major"], (True, True)), (["--no-major", "--minor"], (False, True))],
)
def test_run(served: Served, capsys: Capture, options: list[str], forced: tuple[bool | None, bool | None]) -> None:
    assert run(["gc", "run", *options]) == 0
    assert capsys.readouterr().out.startswith("Triggered GC on BookieServer: 127.0.0.1:32700")
    assert served.admin.gc.forced == [forced]


@pytest.mark.parametrize(("errors", "code"), [([], CommandExit.OK), (["no space"], CommandExit.COULD_NOT_TELL)])
def test_run_and_wait_for_the_end(
    served: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch, errors: list[str], code: int
) -> None:
    from bookie_pod.cli import gc

    admin, looks = served.admin, []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            admin.gc.collectors = [("/data", gc_state(last_pass=PassResult(logs_deleted=7, errors=errors)))]
            admin.gc.force_pending = False

    monkeypatch.setattr(gc, "time", SimpleNamespace(sleep=sleep))
    assert run(["gc", "run", "--watch"]) == code
    printed = capsys.readouterr()
    assert printed.out.startswith("/data: 0 ledgers and 7 logs deleted, 0 logs compacted, 0 B given back")
    assert printed.err == "".join(f"bookie: {error}\n" for error in errors)
    assert len(looks) == 3


def test_why(served: Served, capsys: Capture) -> None:
    usage = LogUsage(31, total=1000, remaining=250, ledgers=30, in_doubt=50)
    owners = [(ledger, 1_000 - ledger) for ledger in range(30)]
    report = LogReport(31, "/data/1f.log", 1100, usage, owners, "because of ledger 7", 300_000)
    served.admin.gc.log_reports = {31: report}
    assert run(["gc", "why", "1f.log", "--ledgers", "2"]) == 0
    shown = capsys.readouterr().out
    for text in (
        "1f.log (id 31)",
        "25.0%, 250 B, 50 B of them in doubt",
        "because of ledger 7",
        "3 days ago",
        "0: 1.0 KB",
        "28 more",
    ):
        assert text in shown
    assert "2: 998 B" not in shown
    assert run(["gc", "why", "31", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["owners"]) == 30
    assert run(["gc", "why", "ff.log"]) == CommandExit.NOT_THERE
    assert refusal(capsys) == "there is no entry log ff.log (id 255) here"
    assert run(["gc", "why", "never"]) == CommandExit.REFUSED
    assert "must be a file's name" in refusal(capsys)


def test_forecast(served: Served, capsys: Capture) -> None:
    assert run(["gc", "forecast"]) == 0
    shown = capsys.readouterr().out
    assert "minor compaction, due in 60 s: would rewrite 2 logs below 20% (300 B) and give back 700 B" in shown
    assert "major compaction, off or suspended: would rewrite 5 logs below 80%" in shown
    assert "not counted: 1 logs" in shown
    rows = [line.split() for line in shown.splitlines() if "-" in line and "%" in line and "#" in line]
    assert len(rows[-1][-1]) == 30
    assert run(["gc", "forecast", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["usage"]) == 10


def test_quarantine(served: Served, capsys: Capture) -> None:
    assert run(["gc", "quarantine"]) == 0
    assert capsys.readouterr().out == "no entry log is quarantined\n"
    served.admin.gc.collectors = [("/data", gc_state(quarantined={255: "at 4711: no record"}))]
    assert run(["gc", "quarantine"]) == 0
    assert "ff.log" in capsys.readouterr().out


def test_suspend_and_resume(served: Served, capsys: Capture) -> None:
    assert run(["gc", "suspend", "--major"]) == 0
    assert capsys.readouterr().out == "major compaction: suspended\nminor compaction: not suspended\n"
    assert run(["gc", "suspend", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"majorSuspended": True, "minorSuspended": True}
    assert run(["gc", "resume", "--minor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"majorSuspended": True, "minorSuspended": False}


def test_deletions_are_held_and_allowed(served: Served, capsys: Capture) -> None:
    served.admin.gc.collectors = [("/data", gc_state(deletions_held="6 of 10 ledgers", ledgers_waiting=6))]
    assert run(["gc", "status"]) == 0
    assert "6 of 10 ledgers" in capsys.readouterr().out
    assert run(["gc", "allow-deletions", "--ledgers", "6"]) == 0
    assert run(["gc", "allow-deletions", "--older-metadata", "--json"]) == 0
    assert served.admin.gc.allowed == [(6, False), (0, True)]
    assert run(["gc", "allow-deletions"]) == CommandExit.USAGE


# --- errors: one line each, and the exit code says what to do -----------------------------------------------


def test_without_the_token(served: Served, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BOOKIE_TOKEN_FILE")
    assert run(["gc", "status"]) == CommandExit.REFUSED
    assert refusal(capsys) == f"{served.url} demands a token"
    other = tmp_path / "other"
    other.write_text("wrong")
    assert run(["gc", "status", "--token-file", str(other)]) == CommandExit.REFUSED
    assert "demands a token" in refusal(capsys)


def test_a_fault_of_the_bookie(served: Served, capsys: Capture) -> None:
    def reports(log_id: int) -> None:
        raise StorageFault("cannot read entry log 1f.log: Input/output error")

    served.admin.gc.reports = reports  # type: ignore[method-assign, assignment]
    assert run(["gc", "why", "1f.log"]) == CommandExit.COULD_NOT_TELL
    assert refusal(capsys) == "cannot read entry log 1f.log: Input/output error"


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:8000", "http://", "http://x:port", "http://a b", "http://x:0", ""]
)
def test_a_url_that_is_none(capsys: Capture, url: str) -> None:
    assert run(["gc", "status", "--url", url]) == CommandExit.USAGE
    assert "must look like http://127.0.0.1:8000" in refusal(capsys)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/?token=s3cret", "http://127.0.0.1:1#s3cret", "127.0.0.1?s3cret"])
def test_a_url_with_a_query_is_not_repeated(capsys: Capture, url: str) -> None:
    assert run(["gc", "status", "--url", url]) == CommandExit.USAGE
    assert refusal(capsys) == "--url: it has a query or a fragment; tokens come from a file (--token-file)"


@pytest.mark.parametrize(
    ("option", "content"), [("--token-file", ""), ("--token-file", None), ("--ca-file", "x"), ("--cert-file", "x")]
)
def test_a_file_that_is_no_good(tmp_path: Path, capsys: Capture, option: str, content: str | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    assert run(["gc", "status", "--url", "https://127.0.0.1:1", option, str(path)]) == CommandExit.USAGE
    assert refusal(capsys).startswith(f"{option} {path}: ")


def test_nobody_listens(capsys: Capture) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert run(["gc", "status", "--url", url]) == CommandExit.COULD_NOT_TELL
    assert refusal(capsys) == f"{url} cannot be reached: Connection refused"


# --- other servers ------------------------------------------------------------------------------------------


class Canned(BaseHTTPRequestHandler):
    """Says what the server holds for a path; else what Apache's bookie says of paths that it does not know."""

    def do_GET(self) -> None:
        answers = self.server.answers  # type: ignore[attr-defined]
        status, text = answers.get(self.path, (404, "<html><body><h1>Resource not found</h1></body></html>"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def canned() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Canned)
    server.answers = {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


def url_of(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def test_status_of_apaches_bookie(canned: HTTPServer, capsys: Capture) -> None:
    wanted = ("GET /api/v1/bookie/gc_details", "GET /api/v1/bookie/gc/suspend_compaction")
    canned.answers = {  # type: ignore[attr-defined]
        call["request"].removeprefix("GET "): (200, call["answer"])
        for call in json.loads(GOLDEN.read_text())["calls"]
        if call["request"] in wanted
    }
    assert run(["gc", "status", "--url", url_of(canned)]) == 0
    shown = capsys.readouterr().out
    assert "collecting (forced)" in shown
    assert "major compaction" in shown
    assert run(["gc", "forecast", "--url", url_of(canned)]) == CommandExit.NOT_THERE
    assert refusal(capsys) == f"{url_of(canned)} has no /api/v1/bookie/gc/forecast"


@pytest.mark.parametrize(
    ("answer", "code", "line"),
    [
        ((200, "<html>hello"), CommandExit.COULD_NOT_TELL, "answers what is not of the admin API"),
        ((500, "Internal Server Error"), CommandExit.COULD_NOT_TELL, "Internal Server Error"),
        ((503, "the bookie does not serve: starting"), CommandExit.COULD_NOT_TELL, "does not serve"),
        ((409, "no\nway"), CommandExit.REFUSED, "no way"),
        ((302, ""), CommandExit.COULD_NOT_TELL, "with status 302"),
    ],
)
def test_other_answers(canned: HTTPServer, capsys: Capture, answer: tuple[int, str], code: int, line: str) -> None:
    canned.answers = {"/api/v1/bookie/gc/forecast": answer}  # type: ignore[attr-defined]
    assert run(["gc", "forecast", "--url", url_of(canned)]) == code
    assert line in refusal(capsys)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (-1500, "-1.5 KB"), (2 * 10**18, "2,000.0 PB")]
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
