"""`bookie shell`: command lines of Apache BookKeeper's shell, and what of ours they mean."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from bookie_pod.cli.main import cli, run
from bookie_pod.cli.shell import REFUSED, TRANSLATIONS
from bookie_pod.node.identity.bookie_id import HostNetwork

CONFIGURATION = "metadataServiceUri=zk+null://zk1:2181/prod/ledgers\nbookieId=b1\nbookiePort=3181\n"
URI = "zk+null://zk1:2181/prod/ledgers"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The command lines of ours that would run; each must be one that there is."""
    (tmp_path / "bk.conf").write_text(CONFIGURATION)
    monkeypatch.setenv("BOOKIE_CONF", str(tmp_path / "bk.conf"))
    made: list[list[str]] = []
    real = cli.main

    def main(args: Sequence[str] | None = None, **others: object) -> object:
        assert args is not None
        if args[0] == "shell":
            return real(args=args, **others)  # type: ignore[call-overload]
        _parse(cli, list(args))
        made.append(list(args))
        return 0

    monkeypatch.setattr(cli, "main", main)
    return made


def _parse(command: click.Command, words: list[str]) -> None:
    """Raises what click says of a command line that is wrong."""
    while isinstance(command, click.Group):
        name, *words = words
        found = command.commands.get(name)
        assert found is not None, f"there is no command {name}"
        command = found
    command.make_context(command.name, words)


@pytest.mark.parametrize(
    ("apache", "ours"),
    [
        ("autorecovery -enable", "cluster autorecovery enable"),
        ("autorecovery -d", "cluster autorecovery disable"),
        ("bookieformat -nonInteractive -force", "disk format --yes"),
        ("bookieformat -force", "disk format"),
        ("bookieformat -nonInteractive -force -deleteCookie", "disk format --yes; cluster cookie delete b1 --force"),
        ("bookiesanity --entries 3", "bench write --ensemble=1 --write-quorum=1 --ack-quorum=1 --entries=3"),
        ("cookie_create -cf /c b2:3181", "cluster cookie create --cookie-file=/c b2:3181"),
        ("decommissionbookie -bookieid b7:3181", "cluster decommission b7:3181 --stopped"),
        ("decommissionbookie", "cluster decommission b1 --stopped"),
        ("deleteledger -ledgerid 7 -force", "ledger delete 7 --yes"),
        ("forceauditchecks -calc -rc", "cluster force-auditor-checks --ledgers --replicas"),
        ("initnewcluster", f"cluster init {URI}"),
        ("ledgermetadata -l 7", "ledger info 7"),
        ("lastmark", "disk lastmark --live"),
        ("listbookies -rw -h", "cluster bookies --state=writable"),
        ("listbookies -ro", "cluster bookies --state=read-only"),
        ("listbookies -a", "cluster bookies"),
        ("listfilesondisc -txn -log", "disk files --live --kind=journal --kind=entry log"),
        ("listledgers -meta", "ledger list --long"),
        ("listledgers -bookieid b2:3181", "cluster recover --query b2:3181"),
        ("listunderreplicated -missingreplica b2:3181 -c", "cluster list-under-replicated --missing=b2:3181 --count"),
        ("lostbookierecoverydelay -get", "cluster lost-delay get"),
        ("lostbookierecoverydelay -s 60", "cluster lost-delay set 60"),
        ("metaformat -nonInteractive", f"cluster init {URI} --if-absent"),
        ("metaformat -n -f", f"cluster format {URI} --confirm --force"),
        ("metaformat -f", f"cluster format {URI}"),
        ("nukeexistingcluster -p /a -f -i x", f"cluster nuke {URI} --root=/a --instance-id=x --confirm --force"),
        ("readjournal -m -dir /j 17a", "disk readjournal --live --journal-dir=/j --payload=ascii 17a"),
        ("readledger -ledgerid 7 -fe 0 -le 9 -r", "ledger read 7 --first=0 --last=9 --recover"),
        ("readlog -l 7 -e 3 0", "disk readlog --live --ledger=7 --entry=3 0"),
        ("-ledgeridformat long -entryformat string recover -q b2:3181", "cluster recover b2:3181 --query"),
        ("recover -f -sk -d b2:3181,b3:3181", "cluster recover b2:3181,b3:3181 --force --skip-open --delete-cookie"),
        ("regenerate-interleaved-storage-index-file -l 1,2", "disk rebuild-index-files --ledger=1 --ledger=2"),
        ("simpletest -e 3 -w 3 -a 2 -n 100", "bench write --ensemble=3 --write-quorum=3 --ack-quorum=2 --entries=100"),
        ("triggeraudit", "cluster trigger-audit"),
        (
            "updateBookieInLedger -sb a:1 -db b:1 -s 7 -l 9 -v true",
            "cluster rename-bookie a:1 b:1 --rate=7 --limit=9 --yes",
        ),
        ("whoisauditor", "cluster who-is-auditor"),
    ],
)
def test_what_a_command_line_means(ran: list[list[str]], apache: str, ours: str) -> None:
    before = dict(os.environ)
    assert run(["shell", *apache.split()]) == 0
    assert "; ".join(" ".join(words) for words in ran) == ours
    assert dict(os.environ) == before


@pytest.mark.parametrize(("to", "ids"), [("hostname", "127.0.0.1:3181 h:3181"), ("ip", "h:3181 127.0.0.1:3181")])
def test_an_id_is_changed_from_an_address_to_a_name_and_back(
    ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, ids: str
) -> None:
    words = "metadataServiceUri=zk+null://zk1:2181/l\nlisteningInterface=lo\nallowLoopback=true\nbookiePort=3181\n"
    (tmp_path / "bk.conf").write_text(words)
    monkeypatch.setattr(HostNetwork, "canonical_name", lambda self, address: "h")
    assert run(["shell", "updateledgers", "-b", to, "-s", "3"]) == 0
    assert [" ".join(words) for words in ran] == [f"cluster rename-bookie {ids} --rate=3 --yes"]


_NEEDED = {"<bookie>": "b2:3181", "<bookies>": "b2:3181", "<ledger>": "7", "<log>": "0", "<journal>": "1"}
_REQUIRED = {
    "cookie_create": "-cf /c",
    "cookie_generate": "-j /j -l /l -o /c",
    "cookie_update": "-cf /c",
    "deleteledger": "-l 7",
    "ledgermetadata": "-l 7",
    "nukeexistingcluster": "-p /a",
    "readledger": "-l 7",
    "updateBookieInLedger": "-sb a:1 -db b:1",
}


@pytest.mark.parametrize("command", sorted(TRANSLATIONS.keys() - {"updateledgers", "whatisinstanceid"}))
def test_every_command_means_some_that_there_are(ran: list[list[str]], command: str) -> None:
    words = TRANSLATIONS[command].options.split()
    needed = [_NEEDED[word] for word in words if word.startswith("<")]
    assert run(["shell", command, *_REQUIRED.get(command, "").split(), *needed]) == 0
    assert ran


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "has no command nothing; `bookie shell help` lists them"),
        (["updatecookie", "-b", "ip"], "updatecookie is not possible here: `bookie cluster rename-bookie`"),
        (["updateledgers", "-b", "ip"], "the configuration makes the id b1, whatever useHostNameAsBookieID"),
        (["updateledgers"], "-bookieId says to what the id is changed: hostname or ip"),
        (["listledgers", "--nonsense"], "bookie shell listledgers: unrecognized arguments: --nonsense; see"),
        (["cookie_get"], "the following arguments are required: bookie"),
        (["bookieformat", "-nonInteractive"], "-nonInteractive removes nothing without -force"),
        (["nukeexistingcluster", "-f"], "nukeexistingcluster: -zkledgersrootpath"),
        (
            ["ledgermetadata", "-l", "7", "-restorefromfile", "f"],
            "ledgermetadata -restorefromfile is not possible here",
        ),
        (
            ["readledger", "-l", "7", "-b", "b1:3181"],
            "readledger -bookie is not possible here: `bookie cluster replicas",
        ),
        (["regenerate-interleaved-storage-index-file", "-password", "p"], "--password-file FILE` reads a file"),
        (["-ledgeridformat", "hex", "listledgers"], "-ledgeridformat hex is not possible here"),
        (["-entryformat", "hex", "readlog", "0"], "-entryformat hex is not possible here: `bookie disk readlog"),
    ],
)
def test_what_is_refused(ran: list[list[str]], words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shell", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert ran == []


def test_no_command_of_apaches_is_unknown() -> None:
    """Those that the shell of 4.17.3 lists by `help`."""
    apaches = """
        activeledgers autorecovery bookieformat bookieinfo bookiesanity check-db-ledgers-index clusterinfo
        convert-to-db-storage convert-to-interleaved-storage cookie_create cookie_delete cookie_generate cookie_get
        cookie_update decommissionbookie deleteledger endpointinfo forceauditchecks initbookie initnewcluster lastmark
        ledger ledgermetadata listbookies listfilesondisc listledgers listunderreplicated localconsistencycheck
        lostbookierecoverydelay metaformat nukeexistingcluster queryautorecoverystatus readjournal readledger readlog
        readlogmetadata rebuild-db-ledger-locations-index rebuild-db-ledgers-index recover
        regenerate-interleaved-storage-index-file simpletest triggeraudit updateBookieInLedger updatecookie
        updateledgers whatisinstanceid whoisauditor
    """
    assert set(apaches.split()) <= TRANSLATIONS.keys() | REFUSED.keys()


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shell", "help"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == TRANSLATIONS.keys() | REFUSED.keys()
