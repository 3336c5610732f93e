"""A Kerberos realm of a test's own: MIT's KDC (Debian: krb5-kdc, krb5-admin-server) in one folder, on loopback.

Processes that are to use it get `environment`; the test's own has it while it is entered.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.support.bookie_process import free_port

REALM: Final = "PODKEEPER.TEST"
CLIENT: Final = """[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
"""
KDC: Final = """[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
  max_life = 1h
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""


class Kdc:
    """Begun by `start`, ended by `stop`."""

    def __init__(self, folder: Path) -> None:
        if missing := [tool for tool in ("kdb5_util", "kadmin.local", "krb5kdc") if _tool(tool) is None]:
            raise FileNotFoundError(f"{', '.join(missing)}: apt-get install krb5-kdc krb5-admin-server")
        self.folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.configuration = folder / "krb5.conf"
        given = {"realm": REALM, "port": self._port, "folder": folder}
        self.configuration.write_text(CLIENT.format_map(given))
        (folder / "kdc.conf").write_text(KDC.format_map(given))
        self.environment = {"KRB5_CONFIG": str(self.configuration), "KRB5RCACHEDIR": str(folder)}
        self._run("kdb5_util", "create", "-s", "-P", "of-the-database", "-r", REALM)

    def principal(self, name: str, *options: str) -> Path:
        """A new one; returns the keytab that has its key."""
        self._run("kadmin.local", "addprinc", "-randkey", *options, name)
        return self.keytab(name)

    def keytab(self, name: str) -> Path:
        """With a new key: those before it count no more, but for tickets that are out."""
        path = self.folder / f"{name.replace('/', '-')}.keytab"
        path.unlink(missing_ok=True)
        self._run("kadmin.local", "ktadd", "-k", str(path), name)
        return path

    def ticket(self, name: str, cache: Path) -> None:
        """Put a ticket of a principal into a cache, by its keytab."""
        keytab = self.folder / f"{name.replace('/', '-')}.keytab"
        self._run("kinit", "-c", str(cache), "-k", "-t", str(keytab), name)

    def delete(self, name: str) -> None:
        self._run("kadmin.local", "delprinc", "-force", name)

    def start(self) -> None:
        environment = {**os.environ, **self._own()}
        with (self.folder / "kdc.out").open("ab") as out:
            self._process = subprocess.Popen(
                [str(_tool("krb5kdc")), "-n"], env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        ends = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > ends:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _run(self, tool: str, *arguments: str) -> None:
        subprocess.run(
            [str(_tool(tool)), *arguments],
            env={**os.environ, **self._own()},
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    def _own(self) -> dict[str, str]:
        return {**self.environment, "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}


def _tool(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
