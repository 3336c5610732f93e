"""What leaves the cluster in a support bundle bears no secrets.

Two ways, because neither is enough. By *source*: values that are known to be secret (those of Secrets that the cluster
uses, and whatever stood under a name that says so) are replaced wherever they come again, word for word or in base64.
By *shape*: passwords in URLs, options and assignments, bearer tokens, keys of clouds, PEM blocks.

Invariants
- Values of Secrets never, whatever they are called: their keys alone.
- Elsewhere a value goes if its name, or the key of a line, sounds like a password, a token or a credential. Names of
  Secrets and paths of files stay: they say where a value is, and are needed to understand the rest.

Threads: a `Redactor` belongs to one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "REDACTED"
_WORDS: Final = r"passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:private|api|access|account).?key"
_SENSITIVE: Final = re.compile(rf"(?i){_WORDS}|authorization")
_PASS: Final = re.compile(r"(?:^|[^A-Za-z])(?:pass|PASS)(?![A-Za-z])|[a-z0-9]Pass(?![a-z])")
"""`DB_PASS`, `db.pass` and `dbPass`, but neither `bypass` nor `passes`."""
_HARMLESS: Final = re.compile(
    r"(?i)(name|path|file|ref|keyref|optional|class|type|automountServiceAccountToken|serviceAccountToken"
    r"|expirationSeconds)$"
)
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.\-]{0,99}"
_VALUE: Final = r"(?P<value>\\?\"(?:[^\"\\]|\\(?!\")|\\\"(?=[^\s,;}\])]))*\\?\"|'[^'\n]*'|[^\s\"',;&})\]]+)"
_ASSIGNED: Final = re.compile(rf"(?P<name>{_NAME})(?P<sign>\\?[\"']?[ \t]*[=:][ \t]*){_VALUE}")
_WHOLE_LINE: Final = re.compile(rf"(?m)^(?P<name>\s*{_NAME})(?P<sign>\s*[=:][ \t]*)(?P<value>[^\n\"'{{\[]+)$")
"""As in files of properties and in YAML: the value may have blanks."""
_OPTION: Final = re.compile(rf"(?P<name>(?<!\S)--?{_NAME})(?P<sign>[ \t]+){_VALUE}")
_BEARER: Final = re.compile(r"(?i)\b(?P<kept>(?:bearer|basic)\s+)[A-Za-z0-9._~+/=\-]{8,}")
_IN_ADDRESS: Final = re.compile(
    r"(?P<kept>(?:[A-Za-z][A-Za-z0-9+.\-]*://|(?<![\w/.:@-]))[^\s/:@\"']*:)[^\s/@\"']+(?=@(?!sha256:)[\w.\[])"
)
"""`user:password@host`, which the digest of an image is not."""
_OF_CLOUDS: Final = re.compile(
    r"(?P<kept>)(?:\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w\-]{35}|\bgh[pousr]_\w{30,}|\bxox[abprs]-[\w\-]{10,}"
    r"|\beyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)
_PEM: Final = re.compile(
    r"(?P<kept>-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----)(?:(?!-----).)*(?:-----END [A-Z0-9 ]*PRIVATE KEY-----)?", re.DOTALL
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_PUBLIC: Final = re.compile(r"(?i)^(user(name)?|login|.*\.crt|.*\.pub|instance.?id|namespace|host(name)?|port)$")
"""Keys of Secrets whose values are no secrets, and whose words stand everywhere."""
_SHORTEST: Final = 6
"""Characters of a value that is looked for: shorter ones are parts of other words."""


class Redactor:
    """Replaces secrets in objects and in texts; it learns values from the objects that it sees."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn_secret(self, secret: Mapping[str, Any]) -> None:
        """What a Secret of Kubernetes has, as its data are and as they are encoded."""
        for key, encoded in (secret.get("data") or {}).items():
            if _PUBLIC.match(str(key)):
                continue
            try:
                text = base64.b64decode(str(encoded), validate=True).decode()
            except ValueError:
                self._learn(str(encoded))
            else:
                self._learn(text)
        for key, text in (secret.get("stringData") or {}).items():
            if not _PUBLIC.match(str(key)):
                self._learn(str(text))

    def redacted(self, thing: Mapping[str, Any]) -> dict[str, Any]:
        """An object of Kubernetes, without what its owners keep to themselves."""
        if thing.get("kind") == "Secret":
            self.learn_secret(thing)
        copy: dict[str, Any] = self._cleaned(dict(thing))
        if copy.get("kind") == "Secret":
            for part in ("data", "stringData"):
                if isinstance(copy.get(part), dict):
                    copy[part] = dict.fromkeys(copy[part], REDACTED)
        metadata = copy.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
            annotations = metadata.get("annotations")
            if isinstance(annotations, dict):
                annotations.pop(_LAST_APPLIED, None)
        return copy

    def text(self, text: str) -> str:
        """Lines of a log, a file of properties or a document."""
        if self._known:
            if self._pattern is None:
                longest_first = sorted(self._known, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))
            text = self._pattern.sub(REDACTED, text)
        for shape in (_PEM, _BEARER, _IN_ADDRESS, _OF_CLOUDS):
            text = shape.sub(lambda found: found["kept"] + REDACTED, text)
        for assignment in (_WHOLE_LINE, _ASSIGNED, _OPTION):
            text = assignment.sub(_without_value, text)
        return text

    def _learn(self, text: str, named: bool = False) -> None:
        """`named`: only its name says that it is secret, so a plain word is left alone."""
        text = text.strip()
        if named and text.isalpha() and text.islower() and len(text) < 2 * _SHORTEST:
            return
        lines = [line.strip() for line in text.splitlines()] if "\n" in text else []
        for each in (text, *(line for line in lines if len(line) >= 2 * _SHORTEST)):
            if len(each) >= _SHORTEST and each != REDACTED:
                self._known[each] = None
                self._known[base64.b64encode(each.encode()).decode().rstrip("=")] = None
                self._pattern = None

    def _cleaned(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            if "value" in value and isinstance(value.get("name"), str) and sensitive(value["name"]):
                self._learn(str(value["value"]), named=True)
                return {**value, "value": REDACTED}
            return {key: self._cleaned(child, str(key)) for key, child in value.items()}
        if isinstance(value, list):
            cleaned = [self._cleaned(child, name) for child in value]
            for at, option in enumerate(value[:-1]):
                if isinstance(option, str) and option.startswith("-") and "=" not in option and sensitive(option):
                    self._learn(str(value[at + 1]), named=True)
                    cleaned[at + 1] = REDACTED
            return cleaned
        if isinstance(value, str):
            if value and sensitive(name):
                self._learn(value, named=True)
                return REDACTED
            return self.text(value)
        return value


def sensitive(name: str) -> bool:
    """Whether a value of this name is nobody else's business."""
    return bool(_SENSITIVE.search(name) or _PASS.search(name)) and not _HARMLESS.search(name)


def _without_value(found: re.Match[str]) -> str:
    if not sensitive(found["name"].strip()) or found["value"].strip("\\\"' ") in ("", REDACTED):
        return found[0]
    quote = re.match(r"\\?[\"']", found["value"])
    return f"{found['name']}{found['sign']}{quote[0] if quote else ''}{REDACTED}{quote[0] if quote else ''}"
