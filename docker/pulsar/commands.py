#!/opt/podkeeper/bin/python3
"""The programs that pods of bookies in the Apache Pulsar chart run, by the name that this file is called by:

    bin/apply-config-from-env.py FILE...    keys from the environment into configuration files
    bin/pulsar bookie | autorecovery | zookeeper-shell ...
    bin/bookkeeper bookie | autorecovery | shell COMMAND ... | org.apache.zookeeper.ZooKeeperMain ...
    nslookup NAME                           whether a name has an address

They run `bookie` with the configuration of `BOOKIE_CONF`, by default conf/bookkeeper.conf, and the memory that
`BOOKIE_MEM` or `PULSAR_MEM` give to a Java bookie.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

PREFIX: Final = "PULSAR_PREFIX_"
"""Before a key that the file may lack; without it only keys that the file names are set."""
_KEY: Final = re.compile(r"\s*#?\s*([A-Za-z][A-Za-z0-9_.\-]*)\s*=")
_MEMORY: Final = re.compile(r"-(?:Xmx|XX:MaxDirectMemorySize=)([0-9]+)([kKmMgG]?)")
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ZOOKEEPER_TIMEOUT_S: Final = 15.0


def applied(text: str, environment: Mapping[str, str]) -> str:
    """The configuration file with the keys of the environment. A key is set where the file names it last, also in a
    comment; one with `PULSAR_PREFIX_` that the file does not name is added."""
    lines = text.splitlines()
    places = {match[1]: number for number, line in enumerate(lines) if (match := _KEY.match(line)) is not None}
    for name, value in sorted(environment.items()):
        key = name.removeprefix(PREFIX)
        line = f"{key}={value.strip()}"
        if "\n" in line or "\r" in line:
            raise SystemExit(f"apply-config-from-env.py: the value of {name} has more than one line")
        if key in places:
            lines[places[key]] = line
        elif key != name:
            places[key] = len(lines)
            lines.append(line)
    return "\n".join(lines) + "\n"


def memory_budget_mb(environment: Mapping[str, str]) -> int | None:
    """`memoryBudgetMb` for the heap and direct memory of a Java bookie together, of which it is half, since a process
    takes up to twice its budget. None: nothing was said."""
    text = environment.get("BOOKIE_MEM") or environment.get("PULSAR_MEM") or ""
    total = sum(int(number) * _UNITS[unit.lower()] for number, unit in _MEMORY.findall(text))
    return max(64, total // 2 >> 20) if total else None


def _apply(files: Sequence[str]) -> None:
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = applied(file.read(), os.environ)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def _bookie(*words: str) -> NoReturn:
    environment = dict(os.environ)
    environment.setdefault("BOOKIE_CONF", "conf/bookkeeper.conf")
    budget = memory_budget_mb(environment)
    if budget is not None:
        environment.setdefault("BK_memoryBudgetMb", str(budget))
    os.execvpe("bookie", ["bookie", *words], environment)


def _run(program: str, words: Sequence[str]) -> None:
    command, rest = (words[0], words[1:]) if words else ("", ())
    if command == "bookie":
        _bookie("serve")
    elif command == "autorecovery":
        _bookie("autorecovery")
    elif command == "shell" and program == "bookkeeper":
        _bookie("shell", *rest)
    elif command in ("zookeeper-shell", "org.apache.zookeeper.ZooKeeperMain"):
        _zookeeper(rest)
    else:
        raise SystemExit(f"{program}: {command or 'no command'} is not in this image, which runs bookies only")


def _zookeeper(words: Sequence[str]) -> None:
    """`-server HOSTS ls PATH` and `-server HOSTS create PATH [DATA]`, as far as the chart's jobs need them."""
    rest = list(words)
    hosts = "localhost:2181"
    if rest[:1] == ["-server"]:
        hosts, rest = rest[1], rest[2:]
    if len(rest) < 2 or rest[0] not in ("ls", "create"):
        raise SystemExit("zookeeper-shell: only -server HOSTS ls PATH and -server HOSTS create PATH [DATA] are known")
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException, NodeExistsError
    from kazoo.handlers.threading import KazooTimeoutError

    client = KazooClient(hosts)
    try:
        client.start(_ZOOKEEPER_TIMEOUT_S)
        if rest[0] == "ls":
            print("[" + ", ".join(sorted(client.get_children(rest[1]))) + "]")
        else:
            client.create(rest[1], "".join(rest[2:3]).encode())
            print(f"Created {rest[1]}")
    except NodeExistsError:
        raise SystemExit(f"Node already exists: {rest[1]}") from None
    except (KazooException, KazooTimeoutError) as error:
        raise SystemExit(f"zookeeper-shell: {rest[0]} {rest[1]}: {type(error).__name__} {error}") from None
    finally:
        client.stop()
        client.close()


def _look_up(names: Sequence[str]) -> None:
    try:
        for name in names:
            for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
                print(f"Name: {name}\nAddress: {found[4][0]}")
    except OSError as error:
        raise SystemExit(f"nslookup: {error}") from None


def main(arguments: Sequence[str]) -> None:
    """By the name of the program."""
    name = os.path.basename(arguments[0])
    if name == "apply-config-from-env.py":
        _apply(arguments[1:])
    elif name == "nslookup":
        _look_up(arguments[1:])
    else:
        _run(name, arguments[1:])


if __name__ == "__main__":
    main(sys.argv)
