"""The keys of a bookie's configuration, as far as the operator has to know them.

`config_keys.json` is generated of the bookie's own declarations (`python -m tests.support.config_keys`), because the
operator imports nothing of the bookie; a test compares the two.

Invariants
- A value is judged here by its own key alone: what needs several keys, or the pod's memory, is judged by the bookie.
- A message names keys and rules, never values: some are secrets.

Threads: values that are read once, for any thread.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_ON: Final = frozenset({"true", "yes", "on"})
_SWITCH: Final = _ON | {"false", "no", "off"}

RESERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "journalDirectories": "use spec.storage.journal",
        "journalDirectory": "use spec.storage.journal",
        "ledgerDirectories": "use spec.storage.ledger",
        "indexDirectories": "use spec.storage.index",
        "metadataServiceUri": "use spec.metadataService",
        "zkServers": "use spec.metadataService.uri",
        "zkLedgersRootPath": "use spec.metadataService.rootPath",
        "bookieId": "it is the name of the pod",
        "bookiePort": "it is always 3181",
        "advertisedAddress": "it is the name of the pod",
        "useHostNameAsBookieID": "the bookie id is the name of the pod",
        "useShortHostName": "the bookie id is the name of the pod",
        "listeningInterface": "bookies listen on all interfaces of their pod",
        "allowLoopback": "bookies listen on all interfaces of their pod",
        "allowEphemeralPorts": "ports are fixed",
        "networkLocation": "use spec.placement.zones",
        "httpServerEnabled": "probes and the operator need it",
        "httpServerHost": "probes and the operator need it",
        "httpServerPort": "it is always 8000",
        "httpServerAuthTokenFile": "the operator makes the token",
        "httpServerAuthProbes": "the kubelet sends no token",
        "httpServerTlsEnable": "use spec.tls.adminApi",
        "httpServerTlsClientAuthentication": "probes have no certificate; the token tells who may ask",
        "httpServerCertificatePath": "use spec.tls.adminApi",
        "httpServerKeyStorePath": "use spec.tls.adminApi",
        "httpServerTrustStorePath": "use spec.tls.adminApi",
        "prometheusStatsHttpEnable": "metrics are on the HTTP port",
        "prometheusStatsHttpPort": "metrics are on the HTTP port",
        "grpcServerHost": "bookies listen on all interfaces of their pod",
        "grpcServerPort": "it is always 3182",
        "autoRecoveryDaemonEnabled": "use spec.autorecovery.enabled",
        "lostBookieRecoveryDelay": "use spec.autorecovery.lostBookieRecoveryDelaySeconds",
        "persistBookieStatusEnabled": "a bookie that is drained has to stay read-only over a restart",
        "forceReadOnlyBookie": "create a BookieTask of type Decommission",
        "readOnlyModeEnabled": "a bookie with full disks has to stay up for readers",
        "minNumZonesPerWriteQuorum": "use spec.placement.minZonesPerWriteQuorum",
        "tlsProviderFactoryClass": "use spec.tls",
        "tlsKeyStoreType": "use spec.tls",
        "tlsKeyStore": "use spec.tls",
        "tlsTrustStoreType": "use spec.tls",
        "tlsTrustStore": "use spec.tls",
        "tlsCertificatePath": "use spec.tls",
    }
)
"""Keys that the operator sets, with what to do instead."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """What is known of one key."""

    name: str
    kind: str
    """`int`, `float`, `bool`, `str`, `str | None` or `tuple[str, ...]`."""
    dynamic: bool
    """A running bookie takes a change over its admin API; any other key counts from the next start on."""
    secret: bool
    at_least: float | None
    at_most: float | None
    above: float | None
    below: float | None
    choices: tuple[str, ...]

    def fault(self, text: str) -> str:
        """The rule that this text breaks; empty: none. An empty text is the default, as in the bookie."""
        text = text.strip()
        if not text:
            return ""
        if "${" in text:
            return "a reference ${...} is not expanded; write the value itself"
        match self.kind:
            case "int":
                if not _WHOLE.fullmatch(text):
                    return "must be a whole number"
                return self._outside(int(text))
            case "float":
                if not _NUMBER.fullmatch(text):
                    return "must be a number"
                return self._outside(float(text))
            case "bool":
                return "" if text.lower() in _SWITCH else "must be true or false"
        return self._no_choice(text)

    def _no_choice(self, text: str) -> str:
        if not self.choices or any(text in (choice, choice.rpartition(".")[2]) for choice in self.choices):
            return ""
        return f"must be one of {', '.join(self.choices)}"

    def _outside(self, value: float) -> str:
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least:.15g}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most:.15g}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {self.above:.15g}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below:.15g}"
        return ""


def switched(text: str) -> bool | None:
    """What a value of kind `bool` means; None: nothing was said, or nothing that there is."""
    plain = text.strip().lower()
    return plain in _ON if plain in _SWITCH else None


def known_keys() -> Mapping[str, ConfigKey]:
    """Every key by each of its names, older ones too."""
    return _loaded()[0]


def is_ignored(name: str) -> bool:
    """Whether Apache BookKeeper knows the key, and it means nothing to these bookies: accepted, without effect."""
    names, prefixes = _loaded()[1:]
    return name in names or name.startswith(prefixes)


def nearest(name: str) -> str | None:
    """The known key that is spelt most like this one; None: nothing is near."""
    folded = {known.lower(): known for known in known_keys()}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def dynamic_part(config: Mapping[str, str]) -> dict[str, str]:
    """The keys of `spec.config` that running bookies take without a restart, under their present names."""
    known = known_keys()
    return {known[name].name: text for name, text in config.items() if name in known and known[name].dynamic}


def static_part(config: Mapping[str, str]) -> dict[str, str]:
    """All other keys of `spec.config`, as they are written: a change of one takes a restart."""
    known = known_keys()
    return {name: text for name, text in config.items() if not (name in known and known[name].dynamic)}


@cache
def _loaded() -> tuple[Mapping[str, ConfigKey], frozenset[str], tuple[str, ...]]:
    content = resources.files(__package__).joinpath("config_keys.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(content)
    keys: dict[str, ConfigKey] = {}
    for name, facts in document["keys"].items():
        key = ConfigKey(
            name=name,
            kind=facts["kind"],
            dynamic=facts.get("dynamic", False),
            secret=facts.get("secret", False),
            at_least=facts.get("atLeast"),
            at_most=facts.get("atMost"),
            above=facts.get("above"),
            below=facts.get("below"),
            choices=tuple(facts.get("choices", ())),
        )
        for each in (name, *facts.get("legacy", ())):
            keys[each] = key
    return MappingProxyType(keys), frozenset(document["ignored"]), tuple(document["ignoredPrefixes"])
