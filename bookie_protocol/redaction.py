"""Redaction: nothing that leaves a machine or a cluster in a support bundle has a secret in it.

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
from typing import Any, Final, NamedTuple
from urllib.parse import quote

REDACTED: Final = "REDACTED"
_WORDS: Final = (
    r"passw(?:or)?d|passphrase|pwd|sshpass|secret|token|credential|(?:private|api|access|account|master|storage|encryption|signing|hmac).?key"
    r"|client.?key.?data|(?<![a-z])sas(?![a-z])|headers$"
)
_SENSITIVE: Final = re.compile(rf"(?i){_WORDS}|authorization")
_PASS: Final = re.compile(r"(?:^|[^A-Za-z])(?:pass|PASS|pw|PW)(?![A-Za-z])|[a-z0-9]Pass(?![a-z])")
"""`DB_PASS`, `db.pass` and `dbPass`, but neither `bypass` nor `passes`."""
_HARMLESS: Final = re.compile(
    r"(?i)(name|path|file|ref|keyref|optional|class|type|automountServiceAccountToken|serviceAccountToken"
    r"|expirationSeconds)$"
)
_NAME: Final = r"(?<![A-Za-z0-9_.\-])[A-Za-z0-9_.\-]++"
_QUOTED: Final = r"\\?\"(?:[^\"\\]|\\(?!\")|\\\"(?=[^\s,;}\])]))*(?:\\?\"|\Z)|'[^'\n]*'"
_VALUE: Final = re.compile(rf"{_QUOTED}|[^\s\"',;&}})\]](?:[^\s\"',;&}})\]]|[\"'](?=\w))*|'\S+")
"""A value in quotes, which what was cut off does not close, or a word; a quote within a word is part of it."""
_BEARER: Final = re.compile(r"(?i)\b(?P<kept>(?:bearer|basic)\s+)[A-Za-z0-9._~+/=\-]{8,}")
_RUN: Final = re.compile(r"[^\s/,\"']+")
"""It may have a login before its last `@`."""
_BOUNDARY: Final = re.compile(r"[^\w/.:@-]")
"""A user begins behind one of these, or at the begin of a run."""
_MOST_OF_A_USER: Final = 200
_HOST: Final = re.compile(r"@(?!sha256:)[\w.\[]")
"""A host follows, which the digest of an image is not."""
_OF_CLOUDS: Final = re.compile(
    r"(?P<kept>)(?:\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w\-]{35}|\bgh[pousr]_\w{30,}|\bgithub_pat_\w{20,}|\bnpm_\w{30,}|\b(?:dckr_pat|sk_live|rk_live)_\w{16,}|\bhv[sbr]\.[\w\-]{20,}|\bxox[abprs]-[\w\-]{10,}"
    r"|\beyJ[\w\-]{8,4000}+\.[\w\-]{8,16000}+\.[\w\-]*)"
)
_PEM: Final = re.compile(
    r"(?P<kept>-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----)(?:(?!-----).)*"
    r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----)?",
    re.DOTALL,
)
_END_OF_KEY: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_SECRET: Final = "c4nary-of-the-examples"
_USER: Final = re.compile(r"[^\s:/\"'{]+:(?P<password>[^\s/]\S*)")
"""`user:password`, as ZooKeeper takes it."""
_TOKEN: Final = re.compile(r"^[ \t]*(?P<token>\S+)[ \t]+(?:viewer|reader|writer|operator|admin)\b", re.MULTILINE)
"""A line of a bookie's file with tokens: its roles follow the token."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_PUBLIC: Final = re.compile(r"(?i)^(user(name)?|login|.*\.crt|.*\.pub|instance.?id|namespace|host(name)?|port)$")
"""Keys of Secrets whose values are not secret, and whose words are everywhere."""
_SHORTEST: Final = 6
"""Characters of a value that is looked for: shorter ones are parts of other words."""
_LINE: Final = r"(?m)^[ \t]*(?:[#!;]+[ \t]*|-[ \t]+|(?:export|setenv|ENV)[ \t]+)*+"
"""The begin of a line. The line may be a comment, an item of a list, or the setting of a variable."""
_LINE_OF_TEXT: Final = r"(?:(?<=\\n)|(?<=[\"']))[ \t]*"
"""The begin of a line in a quoted text."""
_APART: Final = r"(?:[ \t]|\\\n)+(?=[^\s=:])"
"""Blanks alone, as files of properties and Spark's may have. A plain word may begin a sentence, and is no name then."""
_COMPOUND: Final = r"(?P<name>(?=[A-Za-z0-9\-]*(?:[._][A-Za-z0-9]|[a-z][A-Z]))[A-Za-z0-9_.\-]++)"
_REST: Final = re.compile(r"(?:[^\n\\]|\\[\s\S]?)+")
"""The rest of a line, with the lines that continue it."""
_REST_OF_TEXT: Final = re.compile(r"(?:[^\n\"'\\]|\\(?![n\"']))+")
_NO_BLOCK: Final = r"(?![|>][+\-0-9]*[ \t]*\n)"
"""A block of YAML, whose value begins in the next line, is a form of its own."""
_Q: Final = r"\\?[\"']?"


class Format(NamedTuple):
    """A way in which tools write a secret. Groups of the pattern: `kept` stays, what follows it goes."""

    pattern: re.Pattern[str]
    example: str
    """It has `_SECRET` in the place of the secret."""


class Form(NamedTuple):
    """A way in which tools write a name and its value; the name tells whether the value is secret."""

    names: re.Pattern[str]
    """Ends where the value begins. Groups: `name`; and `value`, if the value cannot be found without the name."""
    values: re.Pattern[str]
    example: str
    """It has `_SECRET` in the place of the secret."""


FORMATS: Final = (
    Format(
        re.compile(r"""(?P<kept>\buser_[\w.\-]{1,200}+[ \t]*=[ \t]*\\?["'])[^"'\n\\]+"""), f'user_orders="{_SECRET}"'
    ),
    Format(
        re.compile(
            r"(?i)(?P<kept>(?<![a-z0-9])(?:sig|signature|x-(?:amz|goog)-(?:signature|security-token|credential))"
            r"(?:=|%3D))[^&\s\"';,]+"
        ),
        f"https://a.example/c?sv=2020-08-04&sig={_SECRET}&se=1",
    ),
    Format(
        re.compile(r"(?P<kept>(?<!\S)(?:-u|-U|--user|--proxy-user)[ \t=]*[\"']?[^\s:\"']+:)[^\s\"']+"),
        f"curl -u orders:{_SECRET} x",
    ),
    Format(re.compile(r"(?i)(?P<kept>superdigest[ \t]*[=:][ \t]*[^\s:]+:)\S+"), f"x.superDigest=super:{_SECRET}"),
    Format(re.compile(r"(?i)(?P<kept>\baddauth[ \t]+digest[ \t]+[^\s:]+:)\S+"), f"addauth digest super:{_SECRET}"),
    Format(
        re.compile(
            r"""(?i)(?P<kept>authorization\\?["']?[ \t]*[:=][ \t]*\\?["']?)[\w\-]+[ \t]+(?:"[^"\n]*"|[^"'\n\\])+"""
        ),
        f'x authorization="{_SECRET} {_SECRET}"',
    ),
    Format(re.compile(r"(?P<kept>\blogin[ \t]+\S+[ \t]+password[ \t]+)\S+"), f"machine h login u password {_SECRET}"),
    Format(
        re.compile(r"(?i)(?P<kept>\b(?:identified[ \t]+by|password)[ \t]+b?(?P<mark>[\"']))(?:(?!(?P=mark))[^\n])+"),
        f"CREATE USER a IDENTIFIED BY '{_SECRET}'",
    ),
    Format(
        re.compile(r"""(?i)(?P<kept>\b(?:set-)?cookie["']?[ \t]*:[ \t]*["']?[^=;\n]{1,200}=)[^\n"']+"""),
        f"Cookie: session={_SECRET}",
    ),
    Format(
        re.compile(r"""(?P<kept>\\?["']auth\\?["'][ \t]*:[ \t]*\\?["'])[\w+/=\-]{8,}"""),
        f'{{"auths": {{"r": {{"auth": "{_SECRET}"}}}}}}',
    ),
    Format(re.compile(r"(?P<kept>\b(?:hf_|glpat-|sk-))[A-Za-z0-9_\-]{16,}"), f"hf_{_SECRET}"),
)
"""Formats of secrets that neither the name of a value nor its own shape shows."""


FORMS: Final = (
    Form(
        re.compile(
            rf"(?m)^(?P<indent>[ \t]*)(?:-[ \t]+)?[\"']?(?P<name>{_NAME})[\"']?[ \t]*:[ \t]*[|>][+\-0-9]*[ \t]*"
            r"\n(?P=indent)[ \t]+(?=(?P<value>[^\n]+(?:\n(?:[ \t]*\n)*+(?P=indent)[ \t]+[^\n]+)*+))"
        ),
        _REST,
        f"password: |\n  {_SECRET}",
    ),
    Form(re.compile(rf"{_LINE}(?P<name>{_NAME})[ \t]*=[ \t]*"), _REST, f"a.password = {_SECRET}"),
    Form(
        re.compile(rf"{_LINE}(?P<name>{_NAME})[ \t]*:[ \t]*{_NO_BLOCK}(?=[^\s\"'{{\[])"),
        _REST,
        f"zkPassword: {_SECRET}",
    ),
    Form(re.compile(rf"{_LINE}{_COMPOUND}{_APART}"), _REST, f"a.keyPassword {_SECRET}"),
    Form(
        re.compile(rf"{_LINE_OF_TEXT}(?P<name>[A-Za-z0-9_.\-]++)[ \t]*[=:][ \t]*(?=[^\s\"'{{\[\\])"),
        _REST_OF_TEXT,
        f'"aPassword: {_SECRET}"',
    ),
    Form(
        re.compile(rf"{_LINE_OF_TEXT}{_COMPOUND}(?:[ \t]|\\t)+(?=[^\s=:])"),
        _REST_OF_TEXT,
        f'--conf "a.keyPassword {_SECRET}"',
    ),
    Form(
        re.compile(
            r"(?i)<name>\s{0,100}(?P<name>[^<\s]{1,200})\s{0,100}</name>"
            r"(?:(?!</?(?:name|value|property)\b)[\s\S]){0,500}<value[^>]{0,100}>\s{0,100}(?:<!\[CDATA\[)?"
        ),
        re.compile(r"[^<\]]+"),
        f"<name>fs.s3a.secret.key</name><value>{_SECRET}</value>",
    ),
    Form(
        re.compile(r"<(?P<name>[A-Za-z_][\w.\-]{0,100}+)(?:[ \t][^<>\n]{0,200})?>[ \t]*(?:<!\[CDATA\[)?"),
        re.compile(r"[^<\]]+"),
        f"<aPassword>{_SECRET}</aPassword>",
    ),
    Form(
        re.compile(
            rf"(?m)^(?P<indent>[ \t]*)(?:-[ \t]+)?[\"']?(?P<name>{_NAME})[\"']?[ \t]*:[ \t]*"
            r"\n(?P=indent)[ \t]*-[ \t]+(?![\"']?[\w.\-]{1,100}[\"']?:(?:[ \t]|$))"
            r"(?=(?P<value>[^\n]+(?:\n(?P=indent)[ \t]*-[ \t]+[^\n]+)*+))"
        ),
        _REST,
        f"passwords:\n- {_SECRET}",
    ),
    Form(
        re.compile(rf"\bname[ \t]*:[ \t]*(?P<name>{_NAME})[ \t]*\n[ \t]*value[ \t]*:[ \t]*{_NO_BLOCK}(?=[^\s\"'])"),
        _REST,
        f"- name: A_HEADERS\n  value: {_SECRET}",
    ),
    Form(
        re.compile(
            rf"(?i)\bname{_Q}[ \t]*[=:][ \t]*{_Q}(?P<name>{_NAME}){_Q}[\s,]{{0,100}}{_Q}\bvalue{_Q}[ \t]*[=:][ \t]*"
        ),
        re.compile(rf"{_QUOTED}|[^\s\"',}}\]][^\n\"',}}\]]*"),
        f"- name: DB_PASSWORD\n  value: {_SECRET}",
    ),
    Form(
        re.compile(
            r"(?<![A-Za-z0-9_.\-])(?P<name>--?[A-Za-z_][A-Za-z0-9_.\-]*+)[\"']?[ \t]*(?:,[ \t]*|\n[ \t]*-[ \t]+)"
        ),
        _VALUE,
        f'["--password", "{_SECRET}"]',
    ),
    Form(
        re.compile(rf"(?P<name>{_NAME}){_Q}[ \t]*(?:[=:]{{1,2}}>?|%3[AaDd])[ \t]*{_NO_BLOCK}"),
        _VALUE,
        f"x password={_SECRET}",
    ),
    Form(re.compile(r"(?<!\S)(?P<name>--?[A-Za-z_][A-Za-z0-9_.\-]*+)[ \t]+"), _VALUE, f"x --password {_SECRET}"),
)


class Redactor:
    """Replaces secrets in objects and in texts; it learns values from the objects that it sees."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn_secret(self, secret: Mapping[str, Any]) -> None:
        """Learn the values of a Secret of Kubernetes, as they are and as they are encoded."""
        for key, encoded in (secret.get("data") or {}).items():
            if _PUBLIC.match(str(key)):
                continue
            try:
                text = base64.b64decode(str(encoded), validate=True).decode()
            except ValueError:
                self._learn(str(encoded))
            else:
                self.learn_text(text)
        for key, text in (secret.get("stringData") or {}).items():
            if not _PUBLIC.match(str(key)):
                self.learn_text(str(text))

    def learn_text(self, text: str) -> None:
        """Learn a secret value, and the secrets within it: a file of credentials has names, users and the like, too."""
        self._learn(text)
        for form in FORMS:
            for start, end in _values(text, form):
                self._learn(text[start:end].strip("\\\"' \t;,"), named=True)
        for each in FORMATS:
            for found in each.pattern.finditer(text):
                self._learn(text[found.end("kept") : found.end()], named=True)
        for line in _TOKEN.finditer(text):
            self._learn(line["token"])
        if (user := _USER.fullmatch(text.strip())) is not None:
            self._learn(user["password"])

    def redacted(self, thing: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object of Kubernetes, without what its owners keep to themselves."""
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
        text = _without_logins(_without_ends_of_keys(_PEM.sub(_kept, text)))
        for shape in (_BEARER, _OF_CLOUDS, *(each.pattern for each in FORMATS)):
            text = shape.sub(_kept, text)
        for form in FORMS:
            text = _without_values(text, form)
        return text

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
    """Return True if a value of this name is secret."""
    return bool(_SENSITIVE.search(name) or _PASS.search(name)) and not _HARMLESS.search(name)


def _kept(found: re.Match[str]) -> str:
    return found["kept"] + REDACTED


def _without_logins(text: str) -> str:
    """Return the text without the password of `user:password@host`, and the login of `https://login@host`."""
    if "@" not in text:
        return text
    return "".join(_line_without_logins(line) if "@" in line else line for line in text.splitlines(keepends=True))


def _line_without_logins(line: str) -> str:
    done, kept = 0, []
    for run in _RUN.finditer(line):
        if (span := _login(line, run.start(), run.end())) is not None:
            kept += [line[done : span[0]], REDACTED]
            done = span[1]
    return "".join([*kept, line[done:]])


def _login(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where a secret is within a run, in time that grows with its length."""
    at = text.rfind("@", start, end)
    while at > start and _HOST.match(text, at, end) is None:
        at = text.rfind("@", start, at)
    if at <= start:
        return None
    after_scheme = text.endswith("://", 0, start)
    begin, colon = start, text.find(":", start, at)
    while 0 <= colon < at - 1:
        user = max(begin, colon - _MOST_OF_A_USER)
        is_begin = user == start and (after_scheme or start == 0 or _BOUNDARY.match(text, start - 1) is not None)
        if is_begin or _BOUNDARY.search(text, max(user, start + 1) - 1, colon) is not None:
            return colon + 1, at
        begin, colon = colon + 1, text.find(":", colon + 1, at)
    if after_scheme and text.endswith(("http://", "https://"), 0, start):
        return start, at
    return None


def _without_ends_of_keys(text: str) -> str:
    """Return the text without the lines before the end of a key whose begin was cut off."""
    done, kept = 0, []
    for end in _END_OF_KEY.finditer(text):
        begin = end.start()
        while begin > done:
            line = text.rfind("\n", done, begin - 1) + 1 or done
            if text[line:begin].strip().strip(_BASE64):
                begin = done + len(text[done:begin].rstrip(_BASE64 + "\\"))
                break
            begin = line
        kept += [text[done:begin], REDACTED, "\n"]
        done = end.start()
    return "".join([*kept, text[done:]])


def _values(text: str, form: Form) -> Iterator[tuple[int, int]]:
    """Yield the place of each value whose name says that it is secret; other values may have more of them in them."""
    at = 0
    while (name := form.names.search(text, at)) is not None:
        at = name.end()
        if not sensitive(name["name"]):
            continue
        if "value" in form.names.groupindex:
            yield name.span("value")
            at = name.end("value")
        elif (value := form.values.match(text, at)) is not None:
            yield value.span()
            at = value.end()


def _without_values(text: str, form: Form) -> str:
    kept, done = [], 0
    for start, end in _values(text, form):
        value = text[start:end]
        if value.strip("\\\"' ") in ("", REDACTED):
            continue
        mark = re.match(r"\\?[\"']", value)
        kept += [text[done:start], mark[0] if mark else "", REDACTED, mark[0] if mark else ""]
        done = end
    return "".join([*kept, text[done:]])
