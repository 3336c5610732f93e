"""Redaction: each spelling of a secret goes, and the text around it stays."""

from __future__ import annotations

import base64
import itertools
import json
import time

import pytest

from bookie_protocol.redaction import FORMATS, FORMS, REDACTED, Redactor, sensitive


def test_secrets_keep_their_keys_alone() -> None:
    secret = {
        "kind": "Secret",
        "metadata": {"name": "x", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{data}"}},
        "data": {"a": "YQ=="},
        "stringData": {"b": "c"},
    }
    assert Redactor().redacted(secret) == {
        "kind": "Secret",
        "metadata": {"name": "x", "annotations": {}},
        "data": {"a": REDACTED},
        "stringData": {"b": REDACTED},
    }


def test_what_sounds_like_a_secret_goes_and_what_says_where_it_is_stays() -> None:
    thing = {
        "spec": {
            "config": {"httpServerKeyStorePassword": "x", "gcWaitTime": "5"},
            "tls": {"secretName": "tls"},
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "env": [
                        {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"},
                        {"name": "BK_httpServerAuthTokenFile", "value": "/etc/token"},
                        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ]
                }
            ],
        },
        "data": {"bookie.conf": "gcWaitTime=5\nhttpServerKeyStorePassword=x\nzkAuthCredentialsPath=/etc/zk\n"},
    }
    clean = Redactor().redacted(thing)
    assert clean["spec"]["config"] == {"httpServerKeyStorePassword": REDACTED, "gcWaitTime": "5"}
    assert clean["spec"]["tls"] == {"secretName": "tls"}
    assert clean["spec"]["automountServiceAccountToken"] is False
    first, second, third = clean["spec"]["containers"][0]["env"]
    assert first["value"] == REDACTED
    assert second["value"] == "/etc/token"
    assert third == {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert clean["data"]["bookie.conf"].splitlines() == [
        "gcWaitTime=5",
        f"httpServerKeyStorePassword={REDACTED}",
        "zkAuthCredentialsPath=/etc/zk",
    ]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh.ijk", f"Authorization: {REDACTED}"),
        ("with Bearer abcdefgh.ijk", f"with Bearer {REDACTED}"),
        ('{"password": "x y", "a": 1}', f'{{"password": "{REDACTED}", "a": 1}}'),
        (r'"{\"password\": \"x y\", \"a\": 1}"', rf'"{{\"password\": \"{REDACTED}\", \"a\": 1}}"'),
        ("url?token=abc&b=1", f"url?token={REDACTED}&b=1"),
        ("bookie --password hunter2 --ledger 5", f"bookie --password {REDACTED} --ledger 5"),
        ("bookie --password 'hunter 2' go", f"bookie --password '{REDACTED}' go"),
        ("zk://ada:hunter2@zk-1:2181/x", f"zk://ada:{REDACTED}@zk-1:2181/x"),
        ("via ada:hunter2@proxy.example", f"via ada:{REDACTED}@proxy.example"),
        ("passphrase=x", f"passphrase={REDACTED}"),
        ("env DB_PASS=x MYSQL_PWD=y dbPass=z", f"env DB_PASS={REDACTED} MYSQL_PWD={REDACTED} dbPass={REDACTED}"),
        ("tlsKeyStorePassword = correct horse battery", f"tlsKeyStorePassword = {REDACTED}"),
        ("Protocol=https;AccountKey=a+b/c==;X=y", f"Protocol=https;AccountKey={REDACTED};X=y"),
        ("key AKIAABCDEFGHIJKLMNOP of", f"key {REDACTED} of"),
        (
            "x\n-----BEGIN EC PRIVATE KEY-----\nMHcC\nAQE=\n-----END EC PRIVATE KEY-----\ny",
            f"x\n-----BEGIN EC PRIVATE KEY-----{REDACTED}\ny",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", f"-----BEGIN PRIVATE KEY-----{REDACTED}"),
        ("a=1\nzkPassword=it's {b,c}; \"d\nb=2", f"a=1\nzkPassword={REDACTED}\nb=2"),
        ("zkPassword='tis", f"zkPassword='{REDACTED}'"),
        ("bookie --json --password hunter2", f"bookie --json --password {REDACTED}"),
        ("zkPassword: it's {b,c}", f"zkPassword: {REDACTED}"),
        ("began with zkPassword=ab'cd\"ef in", f"began with zkPassword={REDACTED} in"),
        ('{"a": "zkPassword=abc"}', f'{{"a": "zkPassword={REDACTED}"}}'),
        ('{"password": "cut o', f'{{"password": "{REDACTED}"'),
        ("zk://ada:hunter@2@zk-1:2181,eve:x@zk-2/x", f"zk://ada:{REDACTED}@zk-1:2181,eve:{REDACTED}@zk-2/x"),
    ],
)
def test_shapes_of_secrets(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "nothing of that kind: 5",
        "adminTokenFile=/etc/podkeeper/token",
        "bookie --password-file /etc/x --token-file y",
        "image: podkeeper:1.0@sha256:0123456789abcdef",
        "registry.example/podkeeper:1.0@sha256:0123456789abcdef",
        "12:34:56.789 bypass: the checks passed: 5",
        "    secrets:\n    - name: x",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "ledger 5 on bookie-0.bookies:3181, bookie-1.bookies:3181",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_what_is_known_to_be_secret_is_looked_for_everywhere() -> None:
    redactor = Redactor()
    redactor.learn_secret(
        {"data": {"any": "aHVudGVyMjI=", "username": "cG9ka2VlcGVy", "jaas.conf": "bGluZSBvbmUgaXMgbG9uZwp4Cg=="}}
    )
    redactor.redacted({"env": [{"name": "DB_PASS", "value": "Tr0ub4dor"}, {"name": "A_TOKEN", "value": "disabled"}]})
    redactor.redacted({"command": ["bookie", "--password", "s3same street", "--x"]})
    text = "hunter22 aHVudGVyMjI= podkeeper line one is long Tr0ub4dor disabled s3same street"
    assert redactor.text(text) == f"{REDACTED} {REDACTED}= podkeeper {REDACTED} {REDACTED} disabled {REDACTED}"


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ('quo"te\\d', json.dumps('quo"te\\d')),
        ("pässwörd", json.dumps("pässwörd")),
        ("p@ss/word", "https://ada:p%40ss%2Fword@host"),
        ('Client {\n  password="inside-jaas"; };', "said inside-jaas"),
        ('{"auths": {"r": {"username": "ada-the-first", "password": "of-a-registry"}}}', "said of-a-registry"),
        ("ada:of-zookeeper", "said of-zookeeper"),
        ("a-first-token\n  of-a-line reader,operator ada-the-first\n", "said of-a-line"),
        ("user=ada-the-first\nbookiePassword = of a property", "said of a property"),
    ],
)
def test_what_a_secret_says_is_known_in_every_form(secret: str, text: str) -> None:
    redactor = Redactor()
    redactor.learn_secret({"data": {"any": base64.b64encode(secret.encode()).decode()}})
    clean = redactor.text(f"{text} and ada-the-first")
    assert clean.endswith(" and ada-the-first")
    assert clean.removesuffix(" and ada-the-first") in (
        REDACTED,
        f"said {REDACTED}",
        f'"{REDACTED}"',
        f"https://ada:{REDACTED}@host",
    )


def test_names() -> None:
    assert all(map(sensitive, ("password", "zkPasswd", "apiKey", "client_secret", "adminToken")))
    assert not any(map(sensitive, ("secretName", "tokenFile", "tlsKeyStorePasswordPath", "secretRef", "gcWaitTime")))


@pytest.mark.parametrize("example", [each.example for each in (*FORMATS, *FORMS)])
def test_each_format_of_the_table_loses_its_secret_alone(example: str) -> None:
    before, after = example.partition("c4nary-of-the-examples")[0], example.rpartition("c4nary-of-the-examples")[2]
    redacted = Redactor().text(example)
    assert "c4nary" not in redacted
    assert redacted.startswith(before)
    assert redacted.endswith(after)


@pytest.mark.parametrize("mark", ["=", " = ", "\t=\t", ": ", " : ", "  ", "\t", " \\\n  "])
def test_a_line_of_properties_in_any_spelling(mark: str) -> None:
    names = ("spark.ssl.keyPassword", "SPARK.SSL.KEYPASSWORD", "fs.azure.sas.fixed.x", "aPassword", "DB_PASSWORD")
    for begin, name, secret in itertools.product(
        ("", "  ", "\t", "# ", "#", "- ", "export ", "a\n"),
        names,
        ("c4nary", "c4nary of two c4nary", '"c4nary c4nary"', "'c4nary'", "c4nary\\\n  c4nary"),
    ):
        text = f"{begin}{name}{mark}{secret}\nnext line=5\n"
        clean = Redactor().text(text)
        assert "c4nary" not in clean, text
        assert clean.startswith(f"{begin}{name}"), text
        assert clean.endswith("\nnext line=5\n"), text


@pytest.mark.parametrize(
    "text",
    [
        r'{"event": "spark.ssl.keyPassword c4nary\nspark.x 5"}',
        r'{"event": "a\nspark.ssl.keyPassword\tc4nary of two c4nary"}',
        '--conf "spark.ssl.keyPassword c4nary"',
        'password => "c4nary"',
        "password := 'c4nary'",
        "PASSWORD == c4nary",
        "a?access_token%3Dc4nary%26b",
        "curl -H 'Authorization: Token c4nary' x",
        'curl -H "authorization:\tApiKey c4nary" x',
        "Proxy-Authorization: Digest username=\"u\", response=\"c4nary\"",
        "curl -u 'orders:c4nary' x",
        'curl --proxy-user\t"orders:c4nary" x',
        '{"Cookie": "session=c4nary; b=c4nary"}',
        "ADDAUTH\tDIGEST super:c4nary",
        "https://b/k?Signature=c4nary&Expires=1",
        "https://a/c?SIG=c4nary",
        "user_orders = 'c4nary'",
        r"user_orders=\"c4nary\"",
        "machine h login u password c4nary",
        '["bookie", "--password", "c4nary"]',
        "- --password\n- c4nary",
        '- "--password"\n- "c4nary c4nary"',
        "bookie --password\tc4nary",
        '{"name": "DB_PASSWORD", "value": "c4nary c4nary"}',
        r'"{\"name\": \"DB_PASSWORD\", \"value\": \"c4nary\"}"',
        "- name: DB_PASSWORD\n  value: c4nary",
        "- name: 'DB_PASSWORD'\n  value: 'c4nary c4nary'",
        '<property name="a.password" value="c4nary c4nary"/>',
        "<NAME>fs.azure.sas.x</NAME>\n\t<VALUE>c4nary</VALUE>",
        "<name> a.Password </name>\n<final>true</final>\n<value><![CDATA[c4nary]]></value>",
        "password: |\n  c4nary\n  c4nary",
        "  dbPassword: >-\n    c4nary\n\n    c4nary",
        "- token: |\n    c4nary",
        "client-key-data: c4nary",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nc4nary\n-----END PGP PRIVATE KEY BLOCK-----",
        "setenv DB_PASSWORD c4nary",
        "OTEL_EXPORTER_OTLP_HEADERS=x-honeycomb-team=c4nary",
        "- name: OTEL_EXPORTER_OTLP_HEADERS\n  value: a-key=c4nary,other=c4nary",
        '{"name": "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "value": "x-team=c4nary"}',
        "AZURE_STORAGE_KEY=c4nary",
        "SSHPASS=c4nary",
        "<password>c4nary</password>",
        '<ledger.password a="b">c4nary</ledger.password>',
        "passwords:\n- c4nary\n- c4nary",
        "  tokens:\n    - c4nary\n    - 'c4nary'",
        "https://c4nary@git.example/x",
        "https://orders:c4nary@c4nary@host/x",
        "=orders:c4nary@host",
        "github_pat_c4nary0c4nary0c4nary",
        "hvs.c4nary0c4nary0c4nary",
        "npm_c4nary0c4nary0c4nary0c4nary0c4nary0",
        "password b'c4nary'",
        '{"auths": {"r.example": {"auth": "c4nary+c4nary="}}}',
        "c4nary0\nc4nary0c4nary\n-----END EC PRIVATE KEY-----",
        "    c4nary0c4nary\n    c4nary=\n    -----END PRIVATE KEY-----",
        r"c4nary\nc4nary=\n-----END PRIVATE KEY-----",
        "ENV DB_PASSWORD c4nary",
        "CREATE USER a IDENTIFIED BY 'c4nary'",
        "ALTER USER a WITH PASSWORD 'c4nary'",
    ],
)  # fmt: skip
def test_spellings_of_other_formats(text: str) -> None:
    assert "c4nary" not in Redactor().text(f"{text}\nthe next line")
    assert Redactor().text(f"{text}\nthe next line").endswith("the next line")


@pytest.mark.parametrize(
    "text",
    [
        "Password was changed by the user",
        "token expired after 5 s",
        "spark.executor.memory 4g",
        "spark.eventLog.enabled\ttrue",
        "data:\n  password-file: |\n    /etc/x\n  other: 5",
        "- name: BOOKIE_NAME\n  value: x",
        "<name>fs.defaultFS</name><value>hdfs://a</value>",
        "the disk of ledger 5 is full: 3 of 4",
        "ssh://git@host/x",
        "imagePullSecrets:\n- name: x",
        "  secrets:\n    - name: x\n    - name: y",
        "MIIB\n-----END CERTIFICATE-----",
        "<name>x</name><value>5</value>",
    ],
)
def test_what_only_looks_like_one_of_them_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_a_secret_with_users_of_ours_teaches_their_passwords() -> None:
    redactor = Redactor()
    jaas = base64.b64encode(b'Bookie { Digest required user_orders="c4nary-of-orders"; };').decode()
    redactor.learn_secret({"kind": "Secret", "data": {"jaas.conf": jaas}})
    assert "c4nary" not in redactor.text("login of orders by c4nary-of-orders failed")


@pytest.mark.parametrize(
    "piece",
    [
        "user_",
        "sig=",
        "-u a:",
        "<name>secret",
        "a.",
        "cookie:",
        "addauth digest ",
        "password ",
        "password: |\n ",
        "a.password ",
        "name: password value: ",
        "<name>password</name>",
        "--password\n- ",
        "# a=",
        "password=\\\n",
        "authorization: ",
        "=:",
        "\\:",
        "-eyJa",
        "-eyJaaaaaaaa",
        "a.user_",
        "a:@",
        "AAAA\n",
        "AAAA\n-----END PRIVATE KEY-----",
        "passwords:\n- ",
        "<a.password ",
        *"#!;-*=_~.:@/\\\"' \t\na0A{}[]()<>|&,%+$",
        "# ",
        "- ",
        "export ",
        "ENV ",
    ],
)
def test_no_format_is_slow(piece: str) -> None:
    began = time.process_time()
    Redactor().text(piece * 20_000)
    assert time.process_time() - began < 2
