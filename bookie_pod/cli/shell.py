"""`bookie shell COMMAND`: the commands of Apache BookKeeper's shell, for scripts, runbooks and charts that know them.

Each is translated, name and options, into commands of `bookie`, which run in its place: what they print and return is
theirs. What is not possible here is refused in one line that says what serves instead, and never done in part.

Options are taken with one dash or two, as both kinds of Apache's commands write them. What only reads plain files does
so beside a bookie that runs, as there. The configuration is that of `-conf FILE` or of `BOOKIE_CONF`.

Source: the reference implementation's shell, as its own help describes it. The command's own process; any thread.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

import click

from bookie_pod.cli.connection import Cluster, Connection
from bookie_pod.cli.exit_codes import CommandExit
from bookie_protocol.errors import InvalidConfiguration, MetadataNotFound

Given = argparse.Namespace
Words = list[str]
_RECOVER: Final = (
    "cluster recover {bookies} {query}--query {dryrun}--dry-run {force}--force --ledger={ledger}"
    " {skipOpenLedgers}--skip-open {deleteCookie}--delete-cookie {skipUnrecoverableLedgers}--skip-unrecoverable"
    " --rate={replicationRate}"
)
_NOT_WRITTEN: Final = "no command puts metadata in the place of others; `bookie ledger recover` closes a ledger"
_COOKIE_FILE: Final = "cookie-file|cf= <bookie>"
REFUSED: Final[dict[str, str]] = {
    "activeledgers": "`bookie gc why LOG` says which ledgers keep an entry log of a running bookie",
    "endpointinfo": "`bookie cluster bookies` shows the addresses of all bookies",
    "expandstorage": "set allowStorageExpansion=true, name the new directories, and start the bookie; with"
    " DbLedgerStorage take a new bookie with more directories, and decommission this one",
    "flip-bookie-id": "`bookie cluster rename-bookie` and `bookie disk rename-bookie` give a stopped bookie another id",
    "initbookie": "a bookie that starts on empty directories makes its cookie itself",
    "updatecookie": "`bookie cluster rename-bookie` and `bookie disk rename-bookie` give a stopped bookie another id",
}
"""Commands of Apache's shell that there are none for, and what serves instead."""


@dataclass(frozen=True)
class Translation:
    """`options`: Apache's, as `name|other`, with `=` behind those that take a value, and the arguments, as `<name>`, or
    `[name]` if they may be left out. `words`: the commands of ours that a command line means. `refused`: options that
    there are none for, and what serves instead."""

    options: str
    words: Callable[[Given], Iterator[Words]]
    refused: Mapping[str, str] = field(default_factory=dict)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidConfiguration(f"{self.prog}: {message}; see `bookie shell {self.prog.split()[-1]} -h`")


def _own_uri() -> str:
    return Connection(None, os.environ.get("BOOKIE_CONF"), ()).uri()


def _own_id() -> str:
    from bookie_pod.config.load import load_config
    from bookie_pod.node.identity.bookie_id import derive_bookie_id

    config = load_config(os.environ.get("BOOKIE_CONF"))
    return derive_bookie_id(config.network)


def _one(text: str) -> Callable[[Given], Iterator[Words]]:
    """A command that is one of ours; `{name}` in it stands for what was given, and a word whose value was not given is
    left out."""

    def words(given: Given) -> Iterator[Words]:
        made: Words = []
        for word in text.split():
            if "{" not in word:
                made.append(word)
                continue
            before, _, rest = word.partition("{")
            name, _, after = rest.partition("}")
            value = getattr(given, name)
            if value is True:
                made.append(before + after)  # {flag}--option
            elif value not in (None, False):
                made.append(f"{before}{value}{after}")
        yield made

    return words


def _autorecovery(given: Given) -> Iterator[Words]:
    yield ["cluster", "autorecovery", "enable" if given.enable else "disable" if given.disable else "status"]


def _bookieformat(given: Given) -> Iterator[Words]:
    if given.nonInteractive and not given.force:
        raise InvalidConfiguration("bookieformat: -nonInteractive removes nothing without -force")
    # As there: without -nonInteractive it is asked whatever else is given.
    yield ["disk", "format", *(["--yes"] if given.nonInteractive else [])]
    if given.deleteCookie:
        yield ["cluster", "cookie", "delete", _own_id(), "--force"]


def _bookiesanity(given: Given) -> Iterator[Words]:
    from bookie_client.placement.java_keys import POLICY_KEY

    os.environ[f"BK_{POLICY_KEY}"] = "LocalBookieEnsemblePlacementPolicy"
    quorums = [f"--{name}=1" for name in ("ensemble", "write-quorum", "ack-quorum")]
    yield ["bench", "write", *quorums, f"--entries={given.entries or 10}"]


def _decommission(given: Given) -> Iterator[Words]:
    yield ["cluster", "decommission", given.bookieid or _own_id(), "--stopped"]


def _initnewcluster(given: Given) -> Iterator[Words]:
    yield ["cluster", "init", _own_uri()]


def _metaformat(given: Given) -> Iterator[Words]:
    if given.nonInteractive and not given.force:
        yield ["cluster", "init", _own_uri(), "--if-absent"]  # a cluster that there is stays as it is
        return
    yield ["cluster", "format", _own_uri(), *(["--confirm", "--force"] if given.nonInteractive else [])]


def _nuke(given: Given) -> Iterator[Words]:
    if given.zkledgersrootpath is None:
        raise InvalidConfiguration("nukeexistingcluster: -zkledgersrootpath is missing: name the root to delete")
    instance = [f"--instance-id={given.instanceid}"] if given.instanceid else []
    yield [
        "cluster",
        "nuke",
        _own_uri(),
        f"--root={given.zkledgersrootpath}",
        *instance,
        *(["--confirm", "--force"] if given.force else []),
    ]


def _listbookies(given: Given) -> Iterator[Words]:
    kinds = (("writable", given.readwrite), ("read-only", given.readonly))
    yield ["cluster", "bookies", *(f"--state={kind}" for kind, asked in kinds if asked and not given.all)]


def _listfiles(given: Given) -> Iterator[Words]:
    kinds = (("journal", given.journal), ("entry log", given.entrylog), ("index", given.index))
    yield ["disk", "files", "--live", *(f"--kind={kind}" for kind, wanted in kinds if wanted)]


def _listledgers(given: Given) -> Iterator[Words]:
    if given.bookieid:
        yield ["cluster", "recover", "--query", given.bookieid]
    else:
        yield ["ledger", "list", *(["--long"] if given.meta else [])]


def _lost_delay(given: Given) -> Iterator[Words]:
    if given.set is not None:
        yield ["cluster", "lost-delay", "set", given.set]
    else:
        yield ["cluster", "lost-delay", "get"]


def _regenerate(given: Given) -> Iterator[Words]:
    ledgers = [f"--ledger={each.strip()}" for each in (given.ledgerIds or "").split(",") if each.strip()]
    yield ["disk", "rebuild-index-files", *(ledgers or ["--missing"]), *(["--dry-run"] if given.dryRun else [])]


def _instance(given: Given) -> Iterator[Words]:
    uri = _own_uri()

    async def read(cluster: Cluster) -> str:
        found = await cluster.service.cluster.instance_id()
        if found is None:
            raise MetadataNotFound(f"{uri} has no instance id: there is no cluster yet")
        return found

    click.echo(
        f"Metadata Service Uri: {uri} InstanceId: {Connection(None, os.environ.get('BOOKIE_CONF'), ()).run(read)}"
    )
    yield from ()


def _updateledgers(given: Given) -> Iterator[Words]:
    """Rename to the id that the host's name makes, or its address, from the other one."""
    from bookie_pod.config.load import load_config
    from bookie_pod.node.identity.bookie_id import derive_bookie_id

    if given.bookieId not in ("hostname", "ip"):
        raise InvalidConfiguration("updateledgers: -bookieId says to what the id is changed: hostname or ip")
    config = load_config(os.environ.get("BOOKIE_CONF"))
    options = config.network
    old, new = (
        derive_bookie_id(replace(options, use_host_name_as_bookie_id=by_name))
        for by_name in (given.bookieId == "ip", given.bookieId == "hostname")
    )
    if old == new:
        raise InvalidConfiguration(
            f"updateledgers: the configuration makes the id {old}, whatever useHostNameAsBookieID"
        )
    given.old, given.new = old, new
    yield from _one("cluster rename-bookie {old} {new} --rate={updatespersec} --limit={limit} --yes")(given)


TRANSLATIONS: Final[dict[str, Translation]] = {
    "autorecovery": Translation("enable|e disable|d", _autorecovery),
    "bookieformat": Translation("nonInteractive|n force|f deleteCookie|d", _bookieformat),
    "bookieinfo": Translation("", _one("cluster bookies")),
    "bookiesanity": Translation("entries|e= timeout|t=", _bookiesanity),
    "check-db-ledgers-index": Translation("verbose|v", _one("disk check")),
    "clusterinfo": Translation("", _one("cluster status")),
    "convert-to-db-storage": Translation("", _one("disk convert --to=db")),
    "convert-to-interleaved-storage": Translation("", _one("disk convert --to=interleaved")),
    "cookie_create": Translation(_COOKIE_FILE, _one("cluster cookie create --cookie-file={cookie_file} {bookie}")),
    "cookie_delete": Translation("force|f <bookie>", _one("cluster cookie delete {force}--force {bookie}")),
    "cookie_generate": Translation(
        "journal-dirs|j= ledger-dirs|l= index-dirs|ix= instance-id|i= output-file|o= <bookie>",
        _one(
            "cluster cookie generate --journal-dirs={journal_dirs} --ledger-dirs={ledger_dirs}"
            " --index-dirs={index_dirs} --instance-id={instance_id} --output-file={output_file} {bookie}"
        ),
    ),
    "cookie_get": Translation("<bookie>", _one("cluster cookie get {bookie}")),
    "cookie_update": Translation(_COOKIE_FILE, _one("cluster cookie update --cookie-file={cookie_file} {bookie}")),
    "decommissionbookie": Translation("bookieid|b=", _decommission),
    "deleteledger": Translation("ledgerid|l= force|f", _one("ledger delete {ledgerid} {force}--yes")),
    "forceauditchecks": Translation(
        "checkallledgerscheck|calc placementpolicycheck|ppc replicascheck|rc",
        _one(
            "cluster force-auditor-checks {checkallledgerscheck}--ledgers {placementpolicycheck}--placement"
            " {replicascheck}--replicas"
        ),
    ),
    "initnewcluster": Translation("", _initnewcluster),
    "lastmark": Translation("", _one("disk lastmark --live")),
    "ledger": Translation("meta|m <ledger>", _one("disk ledger {ledger}")),
    "ledgermetadata": Translation(
        "ledgerid|l= dumptofile= restorefromfile= update",
        _one("ledger info {ledgerid}"),
        {
            "dumptofile": "`bookie ledger info LEDGER --json` prints what there is to keep",
            "restorefromfile": _NOT_WRITTEN,
            "update": _NOT_WRITTEN,
        },
    ),
    "listbookies": Translation("readwrite|rw readonly|ro all|a hostnames|h", _listbookies),
    "listfilesondisc": Translation("journal|txn entrylog|log index|idx", _listfiles),
    "listledgers": Translation("meta|m bookieid|b=", _listledgers),
    "listunderreplicated": Translation(
        "missingreplica|mr= excludingmissingreplica|emr= printmissingreplica|pmr printreplicationworkerid|prw"
        " onlydisplayledgercount|c",
        _one(
            "cluster list-under-replicated --missing={missingreplica} --excluding={excludingmissingreplica}"
            " {onlydisplayledgercount}--count"
        ),
    ),
    "localconsistencycheck": Translation("", _one("disk check")),
    "lostbookierecoverydelay": Translation("get|g set|s=", _lost_delay),
    "metaformat": Translation("nonInteractive|n force|f", _metaformat),
    "nukeexistingcluster": Translation("zkledgersrootpath|p= instanceid|i= force|f", _nuke),
    "queryautorecoverystatus": Translation("verbose|v", _one("cluster list-under-replicated")),
    "readjournal": Translation(
        "msg|m dir= <journal>", _one("disk readjournal --live --journal-dir={dir} {msg}--payload=ascii {journal}")
    ),
    "readledger": Translation(
        "ledgerid|l= firstentryid|fe= lastentryid|le= force-recovery|r msg|m bookie|b=",
        _one(
            "ledger read {ledgerid} --first={firstentryid} --last={lastentryid} {force_recovery}--recover"
            " {msg}--format=json"
        ),
        {"bookie": "`bookie cluster replicas LEDGER` shows what each bookie holds"},
    ),
    "readlog": Translation(
        "msg|m ledgerid|l= entryid|e= startpos|sp= endpos|ep= <log>",
        _one(
            "disk readlog --live {msg}--payload=ascii --ledger={ledgerid} --entry={entryid} --from={startpos}"
            " --to={endpos} {log}"
        ),
    ),
    "readlogmetadata": Translation("<log>", _one("disk readlogmetadata {log}")),
    "rebuild-db-ledger-locations-index": Translation("", _one("disk rebuild-locations")),
    "rebuild-db-ledgers-index": Translation("verbose|v", _one("disk rebuild-ledgers")),
    "recover": Translation(
        "query|q dryrun|dr force|f ledger|l= skipOpenLedgers|sk deleteCookie|d skipUnrecoverableLedgers|sku"
        " replicationRate|rate= <bookies>",
        _one(_RECOVER),
    ),
    "regenerate-interleaved-storage-index-file": Translation(
        "ledgerIds|l= dryRun password= b64password=",
        _regenerate,
        dict.fromkeys(
            ("password", "b64password"),
            "the list of processes would show it; `bookie disk rebuild-index-files --password-file FILE` reads a file",
        ),
    ),
    "simpletest": Translation(
        "ensemble|e= writeQuorum|w= ackQuorum|a= numEntries|n=",
        _one(
            "bench write --ensemble={ensemble} --write-quorum={writeQuorum} --ack-quorum={ackQuorum}"
            " --entries={numEntries}"
        ),
    ),
    "triggeraudit": Translation("", _one("cluster trigger-audit")),
    "updateBookieInLedger": Translation(
        "srcBookie|sb= destBookie|db= updatespersec|s= maxOutstandingReads|r= limit|l= verbose|v= printprogress|p=",
        _one("cluster rename-bookie {srcBookie} {destBookie} --rate={updatespersec} --limit={limit} --yes"),
    ),
    "updateledgers": Translation(
        "bookieId|b= updatespersec|s= maxOutstandingReads|r= limit|l= verbose|v= printprogress|p=", _updateledgers
    ),
    "whatisinstanceid": Translation("", _instance),
    "whoisauditor": Translation("", _one("cluster who-is-auditor")),
}


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
    }
)
@click.option("-conf", "--config", "file", metavar="FILE", help="The configuration. [environment: BOOKIE_CONF]")
@click.option("-ledgeridformat", "id_format", metavar="long", help="Ids are decimal numbers.")
@click.option("-entryformat", "entry_format", metavar="string", help="Entries are text.")
@click.argument("command", metavar="COMMAND", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def shell(
    context: click.Context,
    file: str | None,
    id_format: str | None,
    entry_format: str | None,
    command: str | None,
    arguments: tuple[str, ...],
) -> int:
    """Run COMMAND of Apache BookKeeper's shell, such as `listbookies` or `whatisinstanceid`.

    Without COMMAND they are listed with the commands of `bookie` that they stand for.
    """
    if id_format not in (None, "long"):
        raise InvalidConfiguration(f"-ledgeridformat {id_format} is not possible here: ids are decimal numbers")
    if entry_format not in (None, "string"):
        raise InvalidConfiguration(
            f"-entryformat {entry_format} is not possible here: `bookie disk readlog --payload=hex` prints bytes"
        )
    if command is None or command == "help":
        _list()
        return CommandExit.OK
    if command in REFUSED:
        raise InvalidConfiguration(f"{command} is not possible here: {REFUSED[command]}")
    if command not in TRANSLATIONS:
        raise InvalidConfiguration(f"Apache's shell has no command {command}; `bookie shell help` lists them")
    translation = TRANSLATIONS[command]
    given = _parser(command, translation).parse_args(arguments)
    for option, instead in translation.refused.items():
        if getattr(given, option):
            raise InvalidConfiguration(f"{command} -{option} is not possible here: {instead}")
    root = context.find_root().command
    before = dict(os.environ)
    try:
        if file is not None:
            os.environ["BOOKIE_CONF"] = file
        for words in translation.words(given):
            code = root.main(args=words, prog_name="bookie", standalone_mode=False)
            if isinstance(code, int) and code != CommandExit.OK:
                return code
    finally:
        os.environ.clear()
        os.environ.update(before)
    return CommandExit.OK


def _list() -> None:
    for name in sorted(TRANSLATIONS.keys() | REFUSED.keys()):
        click.echo(f"{name:42}{REFUSED[name] if name in REFUSED else TRANSLATIONS[name].options}")


def _parser(command: str, translation: Translation) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"bookie shell {command}", allow_abbrev=False, add_help=command != "listbookies")
    for word in translation.options.split():
        if word[0] in "<[":
            parser.add_argument(word[1:-1], nargs=None if word[0] == "<" else "?")
            continue
        names = word.removesuffix("=").split("|")
        spelled: Sequence[str] = [dashes + name for name in names for dashes in ("-", "--")]
        parser.add_argument(
            *spelled, dest=names[0].replace("-", "_"), action="store" if word.endswith("=") else "store_true"
        )
    return parser
