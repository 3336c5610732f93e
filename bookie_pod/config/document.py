"""`docs/configuration.md`, written from the section dataclasses.

The text of a key is its field's docstring, which Python does not keep: it is read from the module's source.
Nothing of the machine enters the page, so that it is the same everywhere.

Called by `bookie config docs` and by the test that finds a stale page.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from bookie_pod.config.keys import INT_MAX, LONG_MAX, Key, keys_of, render
from bookie_pod.config.model import sections

_TYPES: Final = {
    "int": "whole number",
    "float": "number",
    "bool": "true, false",
    "str": "text",
    "str | None": "text",
    "tuple[str, ...]": "list",
}
_INTRODUCTION: Final = """\
# Configuration

This page is generated: edit the docstrings in `bookie_pod/config/sections/` and run
`bookie config docs --write docs/configuration.md`.

`bookie serve --config FILE` reads Apache BookKeeper's `bk_server.conf` as it is: a Java properties file, lists
separated by commas. Sources in rising priority:

1. the defaults below,
2. the file,
3. environment variables `BK_<key>`, spelt as the key is (`BK_journalDirectories=/data/journal`), as in Apache's
   container image. `BK_DATA_DIR=/data` stands for `/data/journal`, `/data/ledgers` and `/data/index`, and
   `BK_CLUSTER_ROOT_PATH=/prod` for the ledgers root path `/prod/ledgers`, where the keys themselves are not set.
   Keys hold no dots or dashes, so nothing is translated,
4. flags: `--set key=value`, and shorthands that `bookie serve --help` lists.

An unknown key is refused, with the nearest known name. Keys of Apache BookKeeper that mean nothing here (Netty's
allocators, other metrics providers, stream storage) are accepted and named in one log line, and so is a key below that
"has no effect" if it asks for another value than the default. A key that is set twice
in a file to different values is refused. A number, a switch or a name that is set to nothing counts as not set; an
empty list is an empty list. `${...}` is not expanded.

`bookie config check FILE` lists every problem, one line each; `bookie config print FILE` shows the effective values.

## Where the defaults differ from Apache BookKeeper's

@DIFFERENT@

`httpServerEnabled=false`, which Apache's stock file sets, means here what it means there with the Prometheus
provider: no admin API on `httpServerPort`, but metrics (and probes) on `prometheusStatsHttpPort`.

Keys marked *own* are not Apache BookKeeper's; a Java bookie ignores them.
"""

DIFFERENT: Final = {
    "nettyMaxFrameSizeBytes": ("5242880", "Pulsar's brokers send frames that are a little longer"),
    "ledgerStorageClass": ("org.apache.bookkeeper.bookie.SortedLedgerStorage", "what Pulsar and most clusters run"),
    "minUsableSizeForEntryLogCreation": ("`logSizeLimit`", "what Apache documents"),
    "dbStorage_directIOEntryLogger": ("false", "a flush costs less, and evicts nothing that readers use"),
    "dbStorage_rocksDB_writeBufferSizeMB": ("64", "rows are small: larger tables only take memory"),
    "isThrottleByBytes": ("false", "entries differ in size"),
    "compactionRateByBytes": ("1000000", "disks are faster, and compaction gives way to clients"),
    "useTransactionalCompaction": ("false", "a compaction that was interrupted leaves nothing behind"),
    "verifyMetadataOnGC": ("false", "a ledger is not deleted because a listing lacks it"),
    "saslJaasAuditorSectionName": ("Auditor", "a file with one login for all clients is enough"),
    "lostBookieRecoveryDelay": ("0", "a bookie that restarts must not set the whole cluster copying"),
    "auditorReplicasCheckInterval": ("0", "writers without a spare leave entries a copy short; only this sees them"),
    "rereplicationEntryBatchSize": ("10", "larger pieces; bytes bound them too"),
    "replicationRateByBytes": ("-1", "copying leaves room for clients"),
    "recoveryBatchReadEnabled": ("false", "one request for many entries"),
    "httpServerEnabled": ("false", "Kubernetes probes need it"),
    "httpServerPort": ("8080", "the port of charts, dashboards and runbooks in the field"),
    "addEntryQuorumTimeoutSec": ("-1", "an append that its racks cannot take would wait for ever"),
}
"""Keys with another default than in Apache BookKeeper: the default there, and why."""


def configuration_page() -> str:
    """The whole page as Markdown."""
    lines = [_INTRODUCTION.replace("@DIFFERENT@", "\n".join(_differing()))]
    for _, section in sections():
        lines.extend(_section(section))
    return "\n".join(lines)


def _differing() -> Iterator[str]:
    yield "| Key | Apache BookKeeper | here | Why |"
    yield "|---|---|---|---|"
    ours = {declared.name: _default(declared) for _, section in sections() for _, declared in keys_of(section)}
    for name, (theirs, why) in DIFFERENT.items():
        yield f"| `{name}` | {theirs if '`' in theirs else f'`{theirs}`'} | {ours[name]} | {why} |"
    yield "| percentages of direct memory | the JVM's limit | `memoryBudgetMb` | there is no JVM |"


def field_texts(section: type[Any]) -> dict[str, str]:
    """Field name to docstring, for a section dataclass; raises AssertionError if one has none."""
    texts: dict[str, str] = {}
    for name, text in _fields_of_module(section.__module__)[section.__name__].items():
        assert text is not None, f"{section.__name__}.{name} has no docstring"
        texts[name] = text
    return texts


@cache
def _fields_of_module(module: str) -> dict[str, dict[str, str | None]]:
    """Return the docstrings of fields by class. Asked for each class, `inspect` would parse the module each time."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: dict(_fields(each)) for each in tree.body if isinstance(each, ast.ClassDef)}


def _fields(of: ast.ClassDef) -> Iterator[tuple[str, str | None]]:
    for statement, following in zip(of.body, [*of.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            constant = following.value if isinstance(following, ast.Expr) else None
            text = " ".join(str(constant.value).split()) if isinstance(constant, ast.Constant) else None
            yield statement.target.id, text


def _section(section: type[Any]) -> Iterator[str]:
    yield f"## {inspect.getdoc(section)}"
    yield ""
    yield "| Key | Values | Default | Meaning |"
    yield "|---|---|---|---|"
    texts = field_texts(section)
    for field, declared in keys_of(section):
        own = " *own*" if declared.own else ""
        names = f"`{declared.name}`{own}" + "".join(f", older: `{name}`" for name in declared.legacy)
        row = (names, _values(declared, str(field.type)), _default(declared), texts[field.name])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _values(declared: Key, annotation: str) -> str:
    if declared.choices:
        return ", ".join(f"`{choice}`" for choice in declared.choices)
    text = _TYPES[annotation]
    limits = []
    if declared.at_least is not None:
        limits.append(f"at least {declared.at_least}")
    if declared.above is not None:
        limits.append(f"above {declared.above}")
    if declared.below is not None:
        limits.append(f"below {declared.below}")
    if declared.at_most is not None and declared.at_most not in (INT_MAX, LONG_MAX):
        limits.append(f"at most {declared.at_most}")
    return ", ".join([text, *limits])


def _default(declared: Key) -> str:
    if declared.derived:
        return declared.derived
    text = render(declared.default)
    return f"`{text}`" if text else "unset"
