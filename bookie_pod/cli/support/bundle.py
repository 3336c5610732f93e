"""The parts of the support bundle of one bookie. What cannot be read is named in it, and the rest goes on.

Invariants
- Everything passes through one `Redactor`, last of all in `files`. Before, it has learned each secret that the
  configuration or the environment has or names: tokens, passwords, logins, keys.
- Each part is bounded: logs and answers by bytes, lists of files, threads and packages by number.

Synchronous; not on a thread that runs an event loop.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from typing import Any, Final, NamedTuple

from bookie_pod.cli.bookie_api import bookie_api, bookie_of, default_url
from bookie_pod.cli.support.machine import disk_use, process_files
from bookie_pod.config.load import load_config, read_settings
from bookie_pod.config.model import BookieConfig, all_keys, effective
from bookie_protocol.admin_api import autorecovery, bookie, cluster, gc, integrity
from bookie_protocol.admin_api.bodies import NOTHING, Route
from bookie_protocol.admin_api.client import BlockingAdmin
from bookie_protocol.errors import InvalidConfiguration, PodkeeperError
from bookie_protocol.redaction import Redactor, sensitive
from bookie_protocol.shown import one_line

File = tuple[str, str]
"""Path in the bundle, and content."""
FACTS: Final[Mapping[str, Route[Any]]] = {
    "facts/state.json": bookie.STATE,
    "facts/readonly.json": bookie.READ_ONLY,
    "facts/info.json": bookie.INFO,
    "facts/config.json": bookie.CONFIG,
    "facts/cluster.json": cluster.STATE,
    "facts/gc.json": gc.DETAILS,
    "facts/gc-progress.json": gc.PROGRESS,
    "facts/gc-forecast.json": gc.FORECAST,
    "facts/gc-quarantine.json": gc.QUARANTINE,
    "facts/scrub.json": integrity.SCRUB_STATUS,
    "facts/damages.json": integrity.DAMAGES,
    "facts/data-integrity.json": integrity.DATA_INTEGRITY,
    "facts/index-rebuild.json": integrity.REBUILD_STATUS,
    "facts/autorecovery.json": autorecovery.PROCESS,
    "facts/autorecovery-checks.json": autorecovery.CHECKS,
    "metrics.txt": Route("GET", "/metrics", NOTHING),
}
"""Questions to the bookie, by file."""
TIMEOUT_S: Final = 30.0
"""Seconds for one answer of the bookie."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one answer."""
MOST_SECRET_BYTES: Final = 256 * 1024
_MOST_PACKAGES: Final = 1000
_HOLDS_SECRETS: Final = re.compile(r"(?i)token|passw|credential|jaas|auth|key")
"""Names of keys that name a file with secrets."""


class Place(NamedTuple):
    """A bookie of this machine: its configuration, and how to ask it."""

    file: str | None
    given: Mapping[str, str]
    """Keys that the command line sets."""
    url: str | None
    token_file: str | None


class Bundle:
    """The support bundle of one bookie. `log_bytes`: of each of the logs."""

    def __init__(self, place: Place, logs: Sequence[str], log_bytes: int) -> None:
        self._place = place
        self._logs = logs
        self._log_bytes = log_bytes
        self._redactor = Redactor()
        self.missing: list[str] = []
        """The parts that could not be read, and why."""

    def files(self) -> Iterator[File]:
        """Yield all parts; `missing.txt` is the last."""
        config = self._configuration()
        self._learn()
        for name, text in self._files(config):
            yield name, self._redactor.text(text)

    def _configuration(self) -> BookieConfig | None:
        try:
            return load_config(self._place.file, overrides=self._place.given)
        except (InvalidConfiguration, OSError) as error:
            self.missing.append(f"configuration: {one_line(error)}")
            return None

    # --- secrets --------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Learn from what is set, whether a bookie would take it or not."""
        for name, value in os.environ.items():
            if sensitive(name):
                self._redactor.learn_text(value)
        known = all_keys()
        for each in read_settings([], self._place.file, overrides=self._place.given):
            if sensitive(each.name) or (each.name in known and known[each.name][3].secret):
                self._redactor.learn_text(each.text)
            if os.path.isabs(each.text) and _HOLDS_SECRETS.search(each.name):
                self._learn_file(each.name, each.text)
        if self._place.token_file is not None:
            self._learn_file("--token-file", self._place.token_file)

    def _learn_file(self, key: str, path: str) -> None:
        try:
            self._redactor.learn_text(_end_of(path, MOST_SECRET_BYTES).decode())
        except UnicodeDecodeError:
            pass  # a key store in binary, which no text repeats
        except FileNotFoundError:
            pass
        except OSError as error:
            self.missing.append(f"{key}={path}, so that its values are looked for: {error.strerror or error}")

    # --- parts ----------------------------------------------------------------------------------------------

    def _files(self, config: BookieConfig | None) -> Iterator[File]:
        yield "versions.json", _json(_versions())
        yield "environment.json", _json(self._environment())
        if config is not None:
            yield "configuration.properties", _properties(config)
            for name, make in (("doctor.json", _doctor), ("disks.json", disk_use)):
                found = self._part(name, lambda make=make: make(config))  # type: ignore[misc]
                if found is not None:
                    yield name, _json(found)
            yield from self._part("process", lambda: process_files(config.network.bookie_port)) or ()
        yield from self._facts(config)
        for place, path in enumerate(self._logs):
            content = self._part(path, lambda path=path: _end_of(path, self._log_bytes))  # type: ignore[misc]
            if content is not None:
                yield f"logs/{place}-{os.path.basename(path)}", content.decode(errors="replace")
        yield "missing.txt", "\n".join(self.missing) + "\n" if self.missing else "nothing\n"

    def _environment(self) -> dict[str, str]:
        """Variables that set keys; secret ones are learned already, and go."""
        return {name: value for name, value in sorted(os.environ.items()) if name.startswith(("BK_", "BOOKIE_"))}

    def _facts(self, config: BookieConfig | None) -> Iterator[File]:
        api = self._part("admin API", lambda: self._api(config))
        for name, route in FACTS.items() if api is not None else ():
            content = self._part(route.path, lambda route=route: api.fetch(route, max_bytes=MOST_BYTES))  # type: ignore[misc]
            if content is not None:
                yield name, _pretty(content.decode(errors="replace"))

    def _api(self, config: BookieConfig | None) -> BlockingAdmin:
        _, _, url, token_file = self._place
        if url is None and self._place.file is not None and config is not None:
            return bookie_of(config, token_file=token_file, timeout=TIMEOUT_S)
        return bookie_api(url or default_url(), token_file=token_file, timeout=TIMEOUT_S)

    def _part(self, name: str, read: Callable[[], Any]) -> Any:
        """Return what it reads; None if that fails."""
        try:
            return read()
        except (OSError, PodkeeperError) as error:
            self.missing.append(f"{name}: {one_line(error)}")
        except Exception as error:  # a fault of one part costs that part alone
            self.missing.append(f"{name}: unexpected error: {type(error).__name__}")
        return None


def _properties(config: BookieConfig) -> str:
    """Return all keys, those that are set first."""
    keys = sorted(effective(config), key=lambda each: each[0].name not in config.set_keys)
    return "".join(f"{key.name}={text}\n" for key, text in keys)


def _doctor(config: BookieConfig) -> list[dict[str, str]]:
    from bookie_pod.cli.doctor.checks import all_findings
    from bookie_pod.cli.doctor.findings import plain_findings

    return plain_findings(all_findings(config, measure=False))


def _versions() -> dict[str, Any]:
    packages = {each.name: each.version for each, _ in zip(distributions(), range(_MOST_PACKAGES), strict=False)}
    system = platform.uname()
    return {
        "python": sys.version,
        "system": f"{system.system} {system.release} {system.machine}",
        "packages": dict(sorted(packages.items())),
    }


def _end_of(path: str, most: int) -> bytes:
    """Return the end of a regular file. `OSError`, also for anything that is no such file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "is not a regular file", path)
        file.seek(max(0, found.st_size - most))
        return file.read(most)


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def _pretty(text: str) -> str:
    try:
        return _json(json.loads(text))
    except (ValueError, RecursionError):
        return text
