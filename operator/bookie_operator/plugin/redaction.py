"""What leaves the cluster in a support bundle bears no secrets.

Two ways, because neither is enough. By *source*: values that are known to be secret (those of Secrets that the cluster
uses, and whatever stood under a name that says so) are replaced wherever they come again, word for word, in base64, or
as JSON and addresses write them.
By *shape*: passwords in URLs, options and assignments, bearer tokens, keys of clouds, PEM blocks.

Invariants
- Values of Secrets never, whatever they are called: their keys alone.
- Elsewhere a value goes if its name, or the key of a line, sounds like a password, a token or a credential. Names of
  Secrets and paths of files stay: they say where a value is, and are needed to understand the rest.

Threads: a `Redactor` belongs to one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

REDACTED: Final = "REDACTED"
_WORDS: Final = r"passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:private|api|access|account).?key"
_SENSITIVE: Final = re.compile(rf"(?i){_WORDS}|authorization")
_PASS: Final = re.compile(r"(?:^|[^A-Za-z])(?:pass|PASS)(?![A-Za-z])|[a-z0-9]Pass(?![a-z])")
"""`DB_PASS`, `db.pass` and `dbPass`, but neither `bypass` nor `passes`."""
_HARMLESS: Final = re.compile(
    r"(?i)(name|path|file|ref|keyref|optional|class|type|automountServiceAccountToken|serviceAccountToken"
    r"|expirationSeconds)$"
)
_NAME: Final = r"(?<![A-Za-z0-9_.\-])[A-Za-z0-9_.\-]++"
_VALUE: Final = re.compile(
    r"\\?\"(?:[^\"\\]|\\(?!\")|\\\"(?=[^\s,;}\])]))*(?:\\?\"|\Z)|'[^'\n]*'"
    r"|[^\s\"',;&})\]](?:[^\s\"',;&})\]]|[\"'](?=\w))*|'\S+"
)
"""In quotes, which what was cut off does not close, or a word; a quote within a word is part of it."""
_LINES: Final = (
    (re.compile(rf"(?m)^[ \t]*(?P<name>{_NAME})[ \t]*=[ \t]*"), re.compile(r"[^\n]+")),
    (re.compile(rf"(?m)^[ \t]*(?P<name>{_NAME})[ \t]*:[ \t]*"), re.compile(r"[^\s\"'{\[][^\n]*")),
)
"""As in files of properties and in YAML: the value may have blanks, and whatever else."""
_ASSIGNED: Final = (re.compile(rf"(?P<name>{_NAME})\\?[\"']?[ \t]*[=:][ \t]*"), _VALUE)
_OPTION: Final = (re.compile(r"(?<!\S)(?P<name>--?[A-Za-z_][A-Za-z0-9_.\-]*+)[ \t]+"), _VALUE)
_BEARER: Final = re.compile(r"(?i)\b(?P<kept>(?:bearer|basic)\s+)[A-Za-z0-9._~+/=\-]{8,}")
_IN_ADDRESS: Final = re.compile(
    r"(?P<kept>(?:[A-Za-z][A-Za-z0-9+.\-]{0,30}://|(?<![\w/.:@-]))[^\s/:@\"']{0,200}:)[^\s/,\"']+(?=@(?!sha256:)[\w.\[])"
)
"""`user:password@host`, which the digest of an image is not."""
_OF_CLOUDS: Final = re.compile(
    r"(?P<kept>)(?:\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w\-]{35}|\bgh[pousr]_\w{30,}|\bxox[abprs]-[\w\-]{10,}"
    r"|\beyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)
_PEM: Final = re.compile(
    r"(?P<kept>-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----)(?:(?!-----).)*(?:-----END [A-Z0-9 ]*PRIVATE KEY-----)?", re.DOTALL
)
_USER: Final = re.compile(r"[^\s:/\"'{]+:(?P<password>[^\s/]\S*)")
"""`user:password`, as ZooKeeper takes it."""
_TOKEN: Final = re.compile(r"^[ \t]*(?P<token>\S+)[ \t]+(?:viewer|reader|writer|operator|admin)\b", re.MULTILINE)
"""A line of a bookie's file with tokens: behind the token stand its roles."""
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
                self._learn_whole(text)
        for key, text in (secret.get("stringData") or {}).items():
            if not _PUBLIC.match(str(key)):
                self._learn_whole(str(text))

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
        for form in (*_LINES, _ASSIGNED, _OPTION):
            text = _without_values(text, form)
        return text

    def _learn_whole(self, text: str) -> None:
        """A value of a Secret, and what it says that is secret: a file of credentials has names, users and the like."""
        self._learn(text)
        for form in (*_LINES, _ASSIGNED):
            for start, end in _values(text, form):
                self._learn(text[start:end].strip("\\\"' \t;,"), named=True)
        for line in _TOKEN.finditer(text):
            self._learn(line["token"])
        if (user := _USER.fullmatch(text.strip())) is not None:
            self._learn(user["password"])

    def _learn(self, text: str, named: bool = False) -> None:
        """`named`: only its name says that it is secret, so a plain word is left alone."""
        text = text.strip()
        if named and text.isalpha() and text.islower() and len(text) < 2 * _SHORTEST:
            return
        lines = [line.strip() for line in text.splitlines()] if "\n" in text else []
        for each in (text, *(line for line in lines if len(line) >= 2 * _SHORTEST)):
            if len(each) >= _SHORTEST and each != REDACTED:
                encoded = base64.b64encode(each.encode()).decode().rstrip("=")
                for form in (each, encoded, json.dumps(each)[1:-1], quote(each, safe="")):
                    self._known[form] = None
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


def _values(text: str, form: tuple[re.Pattern[str], re.Pattern[str]]) -> Iterator[tuple[int, int]]:
    """Where the values are whose names say that they are secret. Within other values there may be more of them."""
    names, values = form
    at = 0
    while (name := names.search(text, at)) is not None:
        at = name.end()
        if sensitive(name["name"]) and (value := values.match(text, at)) is not None:
            yield value.span()
            at = value.end()


def _without_values(text: str, form: tuple[re.Pattern[str], re.Pattern[str]]) -> str:
    kept, done = [], 0
    for start, end in _values(text, form):
        value = text[start:end]
        if value.strip("\\\"' ") in ("", REDACTED):
            continue
        mark = re.match(r"\\?[\"']", value)
        kept += [text[done:start], mark[0] if mark else "", REDACTED, mark[0] if mark else ""]
        done = end
    return "".join([*kept, text[done:]])
