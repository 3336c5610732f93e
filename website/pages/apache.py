"""`docs/reference/apache.md`: commands, REST paths and metrics of Apache BookKeeper beside those of Podkeeper."""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.cli.shell import REFUSED, TRANSLATIONS, Translation
from bookie_pod.server.http.routes import resources
from website.pages.metrics import groups
from website.pages.text import code, heading, plain, table

_GOLDEN: Final = Path(__file__).parents[2] / "tests" / "golden" / "metrics-db-ledger-storage.json"
_INTRODUCTION: Final = """\
For those who know Apache BookKeeper 4.18: what serves here in the place of each command of `bookkeeper shell`, `bkctl`
and `bkperf`, each REST path and each family of metrics. Scripts need no change for the first: `bookie shell COMMAND`
takes Apache's names and options ([pulsar.md](../pulsar.md#apaches-shell))."""

_FACTS: Final = tomllib.loads((Path(__file__).parents[1] / "apache.toml").read_text(encoding="utf-8"))
_NOT_APACHES_SHELL: Final = frozenset({"expandstorage", "flip-bookie-id"})
"""Of the REST API and of `bkctl`; the shell knows them too."""


def apache_page() -> str:
    """Return the page."""
    lines = [*heading("Beside Apache BookKeeper", "the shell, the routes and the metrics", _INTRODUCTION)]
    lines += ["## bookkeeper shell", ""]
    names = sorted(TRANSLATIONS.keys() | REFUSED.keys() - _NOT_APACHES_SHELL)
    rows = [(code(name), _of_the_shell(name)) for name in names]
    lines += table(("Apache's", "here"), sorted([*rows, ("`help`", "`bookie shell help`")]))
    for program in ("bkctl", "bkperf"):
        rows = [(code(f"{program} {name}"), here) for name, here in _FACTS[program].items()]
        lines += [f"## {program}", "", *table(("Apache's", "here"), rows)]
    lines += ["## REST paths", ""]
    lines += ["All of Apache's, with its methods, parameters and answers; [the HTTP API](../http-api.md) has more.", ""]
    lines += table(("path", "here"), _rest())
    lines += ["## Metrics", "", *_metrics()]
    return "\n".join(lines).rstrip() + "\n"


def _of_the_shell(name: str) -> str:
    if name in REFUSED:
        return f"no such command, because another way serves: {REFUSED[name]}"
    if name in _FACTS["shell"]:
        return str(_FACTS["shell"][name])
    translation = TRANSLATIONS[name]
    words = [*_words(translation)]
    text = code(" ".join(["bookie", *words]))
    refused: dict[str, list[str]] = {}
    for option, instead in translation.refused.items():
        refused.setdefault(instead, []).append(code(f"-{option}"))
    return ". ".join([text, *(f"No {', '.join(options)}: {instead}" for instead, options in refused.items())])


def _words(translation: Translation) -> Iterator[str]:
    """Yield the words of the command without options that Apache's options give."""
    given = argparse.Namespace()
    for word in translation.options.split():
        name = word.strip("<>[]=").split("|")[0].removesuffix("=").replace("-", "_")
        value = name.upper().removesuffix("ID") if word[0] in "<[" or name == "ledgerid" else None
        setattr(given, name, value or (False if "=" not in word else None))
    for words in translation.words(given):
        yield from words


def _rest() -> Iterator[tuple[str, str]]:
    here: dict[str, list[str]] = {}
    for resource in resources(RESOURCES, frozenset()):
        for operation in resource.operations:
            here.setdefault(resource.path, []).append(operation.route.method)
    for path in sorted(_FACTS["rest"]["paths"]):
        anchor = re.sub(r"[^\w-]", "", path.lower())
        links = [f"[{method}](../http-api.md#{method.lower()}-{anchor})" for method in here[path]]
        yield code(path), ", ".join(links)


def _metrics() -> Iterator[str]:
    theirs = {each["name"] for each in json.loads(_GOLDEN.read_text(encoding="utf-8"))}
    absent = {name for name in theirs if name.startswith(tuple(_FACTS["metrics"]))}
    apaches = sum(not metric.own for group in groups() for metric in group.metrics)
    yield (
        f"[Metrics](metrics.md) lists {apaches} that have Apache's names, types and labels, so dashboards need no"
        f" change. Of the {len(theirs)} that a Java bookie with DbLedgerStorage exports these are not here:"
    )
    yield ""
    rows = [
        (code(f"{prefix}..."), str(sum(name.startswith(prefix) for name in absent)), plain(why))
        for prefix, why in _FACTS["metrics"].items()
    ]
    yield from table(("metrics", "how many", "not exported, because"), rows)
