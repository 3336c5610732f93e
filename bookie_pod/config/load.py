"""Loading: from files, environment and flags to a `BookieConfig`.

Sources in rising priority: defaults, the properties file, `BK_<key>` environment variables (the convention of
Apache's container image), flags. A source is read completely before the next; a key of a later source
replaces that of an earlier one, including older names of the same key.

Environment variables: `BK_` and the key as it is written, such as `BK_journalDirectories`. `BK_DATA_DIR` and
`BK_CLUSTER_ROOT_PATH` replace the directories and the root path as in the image. Names in capitals that no key has are
left alone: Kubernetes injects such names for services. A mixed-case name that no key has is refused.

Invariants
- Nothing unknown is accepted in silence: unknown names are refused, meaningless ones are reported.
- `load_config` raises `InvalidConfiguration` or returns a configuration that satisfies every rule.

Called once, before any thread starts.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bookie_pod.config.derive import derive
from bookie_pod.config.ignored import idle_keys, is_ignored
from bookie_pod.config.keys import BadValueError, Key, parse, render
from bookie_pod.config.model import BookieConfig, all_keys
from bookie_pod.config.validate import broken_rules
from bookie_protocol import java_properties as properties
from bookie_protocol.errors import InvalidConfiguration

FILE, ENVIRONMENT, FLAGS = 1, 2, 3
_ENV_PREFIX: Final = "BK_"
_NEVER_EMPTY: Final = frozenset({"int", "float", "bool", "str"})
"""Types for which an empty text is no value: Pulsar's configuration file sets such keys to nothing."""
_MAX_FILE_BYTES: Final = 4 * 1024 * 1024


class Setting(NamedTuple):
    """One key that one source sets."""

    name: str
    text: str
    rank: int
    origin: str
    """Source of the setting, for messages: `bk_server.conf:12`, `environment BK_x`, `--set`."""


@dataclass(slots=True)
class Loaded:
    """The result of reading the sources: a configuration, or the problems that prevent it."""

    config: BookieConfig | None = None
    problems: list[str] = field(default_factory=list)


def load_config(
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> BookieConfig:
    """The configuration from a properties file, the environment (default: the process's) and flags.

    Raises `InvalidConfiguration` with one line: the first problem, and how many more there are.
    """
    loaded = read_config(file, environ, overrides)
    if loaded.config is None:
        more = len(loaded.problems) - 1
        hint = f" (and {more} more: see `bookie config check`)" if more else ""
        raise InvalidConfiguration(loaded.problems[0] + hint)
    return loaded.config


def read_config(
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Loaded:
    """Like `load_config`, but hands back every problem, one line each."""
    loaded = Loaded()
    config = _build(read_settings(loaded.problems, file, environ, overrides), loaded.problems)
    if not loaded.problems:
        loaded.problems.extend(broken_rules(config))
    if not loaded.problems:
        loaded.config = config
    return loaded


def read_settings(
    problems: list[str],
    file: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> list[Setting]:
    """Return every setting as it was written, valid or not; `problems` gets those of the file."""
    return [
        *_from_file(file, problems),
        *_from_environment(os.environ if environ is None else environ),
        *(Setting(name, text, FLAGS, "--set") for name, text in (overrides or {}).items()),
    ]


def _from_file(path: str | None, problems: list[str]) -> list[Setting]:
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        problems.append(f"configuration file {path}: {error.strerror}")
        return []
    except UnicodeDecodeError:
        problems.append(f"configuration file {path}: not UTF-8 text")
        return []
    if len(text) > _MAX_FILE_BYTES:
        problems.append(f"configuration file {path}: larger than {_MAX_FILE_BYTES} bytes")
        return []
    try:
        pairs = properties.parse(text)
    except properties.MalformedPropertiesError as error:
        problems.append(f"{path}:{error.line}: {error}")
        return []
    first: dict[str, properties.Property] = {}
    for pair in pairs:
        earlier = first.setdefault(pair.key, pair)
        if earlier.value != pair.value:
            problems.append(f"{path}:{pair.line}: {pair.key} is set to another value in line {earlier.line}")
    return [Setting(pair.key, pair.value, FILE, f"{path}:{pair.line}") for pair in first.values()]


def _from_environment(environ: Mapping[str, str]) -> Iterable[Setting]:
    known = all_keys()
    for name, text in sorted(environ.items()):
        stripped = name.removeprefix(_ENV_PREFIX)
        if stripped == name or not (stripped in known or is_ignored(stripped) or _looks_like_key(stripped)):
            continue
        yield Setting(stripped, text, ENVIRONMENT, f"environment {name}")
    if root := environ.get("BK_DATA_DIR"):
        for key_name, part in (
            ("journalDirectories", "journal"),
            ("ledgerDirectories", "ledgers"),
            ("indexDirectories", "index"),
        ):
            if not _sets(environ, key_name, known[key_name][3]):
                yield Setting(key_name, f"{root}/{part}", ENVIRONMENT, "environment BK_DATA_DIR")
    if (root := environ.get("BK_CLUSTER_ROOT_PATH")) and "BK_zkLedgersRootPath" not in environ:
        yield Setting("zkLedgersRootPath", f"{root}/ledgers", ENVIRONMENT, "environment BK_CLUSTER_ROOT_PATH")


def _looks_like_key(name: str) -> bool:
    return not name.isupper() and name[:1].islower()


def _sets(environ: Mapping[str, str], name: str, declared: Key) -> bool:
    return any(_ENV_PREFIX + each in environ for each in (name, *declared.legacy))


def _build(settings: Iterable[Setting], problems: list[str]) -> BookieConfig:
    known = all_keys()
    chosen: dict[str, Setting] = {}
    ignored: set[str] = set()
    for setting in settings:
        if setting.name in known:
            declared = known[setting.name][3]
            if known[setting.name][2] in _NEVER_EMPTY and not setting.text.strip():
                continue
            current = chosen.get(declared.name)
            if current is None or _wins(setting, current, declared):
                chosen[declared.name] = setting
        elif is_ignored(setting.name):
            ignored.add(setting.name)
        else:
            problems.append(_unknown(setting, known))
    config = _sections(chosen, problems)
    ignored.update(_without_effect(config, chosen))
    config = derive(config, {name: setting.rank for name, setting in chosen.items()})
    shown = {name: setting.text for name, setting in chosen.items() if not known[name][3].secret}
    return replace(config, set_keys=MappingProxyType(shown), ignored_keys=tuple(sorted(ignored)))


def _without_effect(config: BookieConfig, chosen: Iterable[str]) -> Iterator[str]:
    """Keys whose wish stays unfulfilled; one that asks for the default wishes nothing."""
    known, idle = all_keys(), idle_keys(config)
    for name in chosen:
        section, attribute, _, declared = known[name]
        text = declared.shown(getattr(getattr(config, section), attribute))
        if (declared.no_effect or name in idle) and text != render(declared.default):
            yield name


def _wins(new: Setting, current: Setting, declared: Key) -> bool:
    if new.rank != current.rank:
        return new.rank > current.rank
    return new.name == declared.name


def _sections(chosen: Mapping[str, Setting], problems: list[str]) -> BookieConfig:
    known = all_keys()
    values: dict[str, dict[str, Any]] = {}
    for setting in chosen.values():
        section, attribute, annotation, declared = known[setting.name]
        try:
            values.setdefault(section, {})[attribute] = parse(declared, annotation, setting.text)
        except BadValueError as error:
            text = "********" if declared.secret else setting.text
            problems.append(f"{setting.name}={text}: {error} ({setting.origin})")
    config = BookieConfig()
    changed = {section: replace(getattr(config, section), **changes) for section, changes in values.items()}
    return replace(config, **changed)


def _unknown(setting: Setting, known: Mapping[str, object]) -> str:
    folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(setting.name.lower(), folded, n=1, cutoff=0.6)
    hint = f"; did you mean {folded[near[0]]}?" if near else "; see docs/configuration.md for the known keys"
    return f"{setting.origin}: unknown configuration key {setting.name}{hint}"
