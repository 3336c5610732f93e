"""Login configurations of Java (JAAS files), as far as DIGEST-MD5 needs them.

A file is sections of login modules with options::

    Bookie {
      org.apache.zookeeper.server.auth.DigestLoginModule required
      user_bookkeeper="s3cret";
    };

Comments are those of Java, and lines that begin with `#`. Pure; any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_COMMENT: Final = re.compile(r'("(?:[^"\\\n]|\\.)*")|/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*', re.DOTALL | re.MULTILINE)
_TOKEN: Final = re.compile(r'\s*(?:"((?:[^"\\\n]|\\.)*)"|([^\s"{};=]+)|([{};=]))', re.DOTALL)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry of a section."""

    name: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, {', '.join(self.options)})"


def parse_jaas(content: bytes) -> dict[str, tuple[LoginModule, ...]]:
    """The sections by name. Raises ValueError; no message shows what the file holds, for that may be a password."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    tokens = _Tokens(_COMMENT.sub(lambda found: found[1] or " ", text))
    sections: dict[str, tuple[LoginModule, ...]] = {}
    while not tokens.at_end:
        name = tokens.word("the name of a section")
        tokens.mark("{")
        modules = []
        while not tokens.skip("}"):
            modules.append(_module(tokens))
        tokens.mark(";")
        if name in sections:
            raise ValueError(f"section {name} is there twice")
        sections[name] = tuple(modules)
    return sections


def _module(tokens: _Tokens) -> LoginModule:
    name = tokens.word("a login module")
    if tokens.word("a control flag").lower() not in _FLAGS:
        raise ValueError(f"line {tokens.line}: a control flag is one of {', '.join(sorted(_FLAGS))}")
    options = {}
    while not tokens.skip(";"):
        option = tokens.word("the name of an option")
        tokens.mark("=")
        options[option] = tokens.word("the value of an option")
    return LoginModule(name, options)


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    @property
    def at_end(self) -> bool:
        return not self._text[self._at :].strip()

    def word(self, what: str) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[3]:
            raise ValueError(f"line {self.line}: {what} is missing")
        self._at = found.end()
        return found[2] or re.sub(r"\\(.)", r"\1", found[1] or "")

    def skip(self, mark: str) -> bool:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[3] != mark:
            return False
        self._at = found.end()
        return True

    def mark(self, mark: str) -> None:
        if not self.skip(mark):
            raise ValueError(f"line {self.line}: {mark} is missing")
