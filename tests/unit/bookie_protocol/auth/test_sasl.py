"""Login configurations as Java reads them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.auth.sasl import JaasAuth, SaslAuth, Users, accounts_of, login_of, parse_jaas
from bookie_protocol.auth.watched_file import CHECK_S
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.wire.auth import Peer
from tests.support.clock import Clock

FILE = b"""
/* Who may
   connect { */
Bookie {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_bookkeeper="s3c//ret"   // a comment
  user_app="a \\"quoted\\" one"
  debug=true;
  other.Module optional;
};
# and who this is
BookKeeper {
  org.apache.zookeeper.server.auth.DigestLoginModule REQUIRED username="bookkeeper" password=s3cret;
};
Kerberos { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/etc/keytab"; };
Empty { };
"""


def test_sections_modules_and_options() -> None:
    sections = parse_jaas(FILE)
    assert list(sections) == ["Bookie", "BookKeeper", "Kerberos", "Empty"]
    assert [module.name.rpartition(".")[2] for module in sections["Bookie"]] == ["DigestLoginModule", "Module"]
    assert sections["Bookie"][0].options["debug"] == "true"
    assert "s3c" not in repr(sections)


def test_users_and_login() -> None:
    accounts = accounts_of(FILE, "Bookie")
    assert accounts == Users({"bookkeeper": "s3c//ret", "app": 'a "quoted" one'})
    assert "s3c" not in repr(accounts)
    assert login_of(FILE, "BookKeeper") == SaslAuth("bookkeeper", "s3cret")


def test_a_login_is_the_one_that_the_file_has_now(tmp_path: Path) -> None:
    path, clock = tmp_path / "jaas", Clock()
    path.write_bytes(FILE)
    auth = JaasAuth(str(path), clock=clock)
    assert auth == JaasAuth(str(path))
    path.write_bytes(FILE.replace(b'username="bookkeeper"', b'username="another"'))
    clock.now += CHECK_S
    assert auth._login.value() == SaslAuth("another", "s3cret")
    path.unlink()
    clock.now += CHECK_S
    with pytest.raises(InvalidConfiguration, match=f"saslJaasConfigFile={path}: No such"):
        auth.new_exchange(Peer("192.0.2.1:4000"))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("Nobody", "section Nobody, .*Bookie, BookKeeper, Kerberos, Empty"),
        ("Empty", "section Empty"),
    ],
)
def test_sections_that_are_no_use(section: str, says: str) -> None:
    for read in (accounts_of, login_of):
        with pytest.raises(ValueError, match=says):
            read(FILE, section)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"A {", "line 1: .*module"),
        (b"A { B required x=s3cret; }", "line 1: ; is missing"),
        (b"A { B sometimes x=s3cret; };", "flag"),
        (b"A { B required\nx=; };", "line 2: .*value"),
        (b'A { B required\n\nx="s3cret; };', "line 3: .*value"),
        (b"A { B required x=y; }; A { B required x=y; };", "section A is"),
        (b"A { B required x=\xff; };", "UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        parse_jaas(content)
    assert "s3cret" not in str(error.value)


@given(
    st.lists(st.sampled_from([b"A", b"{", b"}", b";", b"=", b'"', b"/*", b"//", b"#", b" ", b"\n", b"\\"]), max_size=30)
)
def test_rubbish(parts: list[bytes]) -> None:
    with suppress(ValueError):
        parse_jaas(b"".join(parts))
