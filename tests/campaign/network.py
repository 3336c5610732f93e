"""Network namespaces on one bridge: each host of a campaign has an address of its own, and links that fail.

    network = Network(prefix)
    host = network.add()                     # a namespace; `host.enter` stands in front of a command line
    with host.cut(Cut.OUT): ...              # nothing leaves it
    network.close()

The bridge has a namespace of its own, so that this machine's rules for what it forwards, as container runtimes make
them, are nothing to it; this process is one host more (`network.here`). Needs root, `ip` and `iptables`; delay needs
`tc` with netem in the kernel, and without it (`has_netem`) a link is made slow by its rate instead.

Every name begins with the prefix, and `close` removes them all. Any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

_DEVICE: Final = "eth0"
_BRIDGE: Final = "bridge"
_FIRST_HOST: Final = 10


class Cut(Enum):
    """Which way nothing passes."""

    BOTH = ("INPUT", "OUTPUT")
    IN = ("INPUT",)
    OUT = ("OUTPUT",)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str | None:
    """What this machine lacks for namespaces; None: nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "iptables", "nsenter"):
        if shutil.which(tool) is None:
            return f"network namespaces need `{tool}`: apt-get install iproute2 iptables util-linux"
    return None


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace."""

    name: str
    address: str
    has_netem: bool

    @property
    def enter(self) -> list[str]:
        """What stands in front of a command that is to run here; the process keeps its id."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    @contextmanager
    def cut(self, way: Cut, *, peer: str | None = None, loss: float = 1.0) -> Iterator[None]:
        """While the body runs, this share of the packets is lost; with `peer` only those to and from that address."""
        rules = []
        for chain in way.value:
            device = ["-i", _DEVICE] if chain == "INPUT" else ["-o", _DEVICE]
            other = [] if peer is None else ["-s" if chain == "INPUT" else "-d", peer]
            chance = [] if loss >= 1 else ["-m", "statistic", "--mode", "random", "--probability", f"{loss:.3f}"]
            rules.append([chain, *device, *other, *chance, "-j", "DROP"])
        with self._rules(rules):
            yield

    @contextmanager
    def resetting(self, port: int) -> Iterator[None]:
        """While the body runs, whoever sends something to this port has its connection reset."""
        rule = ["INPUT", "-i", _DEVICE, "-p", "tcp", "--dport", str(port), "-j", "REJECT", "--reject-with", "tcp-reset"]
        with self._rules([rule]):
            yield

    @contextmanager
    def slow(self, delay_ms: int, kilobits: int) -> Iterator[None]:
        """While the body runs, what leaves it is late: by a delay, or by a low rate where the kernel has no netem."""
        if self.has_netem:
            kind = ["netem", "delay", f"{delay_ms}ms", f"{delay_ms // 3}ms"]
        else:
            kind = ["tbf", "rate", f"{kilobits}kbit", "burst", "16kb", "latency", f"{delay_ms}ms"]
        self._inside("tc", "qdisc", "add", "dev", _DEVICE, "root", *kind)
        try:
            yield
        finally:
            self._inside("tc", "qdisc", "del", "dev", _DEVICE, "root")

    @contextmanager
    def _rules(self, rules: list[list[str]]) -> Iterator[None]:
        made = []
        try:
            for rule in rules:
                self._inside("iptables", "-w", "-A", *rule)
                made.append(rule)
            yield
        finally:
            for rule in made:
                self._inside("iptables", "-w", "-D", *rule)

    def _inside(self, *command: str) -> None:
        _run(*self.enter, *command)


class Network:
    """One bridge with its hosts."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: at most eight letters and digits, which nothing else on this machine begins with."""
        number = os.getpid()
        self._prefix = prefix
        self._net = f"10.{112 + number % 131}.{number // 131 % 250}"  # not where clusters have services and pods
        self._hosts: list[Host] = []
        self._switch = Host(f"{prefix}s", "", False)
        """Where the bridge is."""
        self._wire = f"{prefix}h"
        try:
            _run("ip", "netns", "add", self._switch.name)
            inside = self._switch.enter
            _run(*inside, "ip", "link", "add", _BRIDGE, "type", "bridge")
            _run(*inside, "ip", "link", "set", _BRIDGE, "up")
            self._plug(self._wire, "here")
            _run("ip", "addr", "add", f"{self.here}/24", "dev", self._wire)
            _run("ip", "link", "set", self._wire, "up")
        except BaseException:
            self.close()
            raise

    @property
    def here(self) -> str:
        """This process's own address."""
        return f"{self._net}.1"

    def add(self) -> Host:
        number = len(self._hosts) + _FIRST_HOST
        name = f"{self._prefix}n{number}"
        address = f"{self._net}.{number}"
        _run("ip", "netns", "add", name)
        host = Host(name, address, False)
        self._hosts.append(host)
        self._plug(_DEVICE, f"to{number}", "netns", name)
        inside = host.enter
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "addr", "add", f"{address}/24", "dev", _DEVICE)
        _run(*inside, "ip", "link", "set", _DEVICE, "up")
        self._hosts[-1] = Host(name, address, self._try_netem(host))
        return self._hosts[-1]

    def _plug(self, device: str, outlet: str, *where: str) -> None:
        """Make a device whose other end, of this name, is on the bridge."""
        _run("ip", "link", "add", device, *where, "type", "veth", "peer", "name", outlet, "netns", self._switch.name)
        _run(*self._switch.enter, "ip", "link", "set", outlet, "master", _BRIDGE, "up")

    @staticmethod
    def _try_netem(host: Host) -> bool:
        try:
            _run(*host.enter, "tc", "qdisc", "add", "dev", _DEVICE, "root", "netem", "delay", "1ms")
        except (RuntimeError, OSError):
            return False
        _run(*host.enter, "tc", "qdisc", "del", "dev", _DEVICE, "root")
        return True

    def close(self) -> None:
        """Remove the namespaces and the bridge; what runs in them is ended before."""
        with contextlib.suppress(RuntimeError):
            _run("ip", "link", "del", self._wire)
        for host in (*self._hosts, self._switch):
            with contextlib.suppress(RuntimeError):
                _run("ip", "netns", "del", host.name)
