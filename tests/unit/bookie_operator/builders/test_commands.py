"""What the pods run is what the image's command line knows."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from bookie_operator.builders import commands
from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.metadata import embedded_service
from bookie_operator.builders.metadata_uri import metadata_service_uri
from bookie_pod.cli.main import cli
from bookie_pod.server.http.routes import PROBES
from tests.support.operator_clusters import CASES, EMBEDDED, INSTANCE_ID, MINIMAL, built, cluster


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Options of the command that these arguments name; raises click.UsageError."""
    command: click.Command = cli
    rest = list(arguments)
    while isinstance(command, click.Group):
        _, found, rest = command.resolve_command(click.Context(command), rest)
        assert found is not None
        command = found
    return command.make_context(None, rest).params


@pytest.mark.parametrize("case", CASES)
def test_every_container_runs_a_command_that_there_is(case: str) -> None:
    objects = built(case)
    found = [each for each in (*objects.objects.values(), objects.destroy_job) if "template" in each.get("spec", {})]
    arguments = [each["spec"]["template"]["spec"]["containers"][0].get("args") for each in found]
    known = [each for each in arguments if each is not None]
    assert ["serve"] in known
    for each in known:
        parsed(each)


@pytest.mark.parametrize(("grace", "drain"), [(10, 5), (120, 60), (3600, 60)])
def test_a_bookie_sends_its_writers_away_before_it_is_stopped(grace: int, drain: float) -> None:
    spec = {**MINIMAL, "pod": {"terminationGracePeriodSeconds": grace}}
    pod = build(cluster(spec), BuildContext()).sets[0].manifest["spec"]["template"]["spec"]
    program, *arguments = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, arguments[0]) == ("bookie", "drain-clients")
    assert parsed(arguments)["timeout"] == drain <= pod["terminationGracePeriodSeconds"] / 2


def test_the_check_sees_what_there_is_not() -> None:
    with pytest.raises(click.UsageError):
        parsed(["cluster", "init", "--no-such-option", "zk://x/y"])


def test_only_the_metadata_of_this_very_cluster_are_removed() -> None:
    options = parsed(commands.destroy(cluster()))
    assert (options["root"], options["instance_id"], options["force"]) == ("/ledgers", INSTANCE_ID, True)
    assert options["uri"].endswith("/ledgers")
    assert not options["if_exists"], "where there is none it is unknown whether others use the root"


def test_probes_ask_what_is_served() -> None:
    served = {resource.path for resource in PROBES}
    assert {commands.ALIVE, commands.READY} <= served


def run_script(tmp_path: Path, program: str, command: Sequence[str]) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The Job's script, with `program` (shell) in the place of `bookie`."""
    (tmp_path / "bookie").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "bookie").chmod(0o755)
    shell, options, script, *arguments = command
    log = tmp_path / "termination-log"
    script = script.replace("/tmp/", f"{tmp_path}/").replace(commands.TERMINATION_LOG, str(log))
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    return (
        subprocess.run(
            [shell, options, script, *arguments], env=environment, capture_output=True, text=True, timeout=30
        ),
        log,
    )


def run_initialisation(tmp_path: Path, program: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    return run_script(tmp_path, program, commands.initialise(cluster()))


@pytest.mark.parametrize("code", [0, 12])
def test_a_look_tells_the_instance_id_and_who_is_registered(tmp_path: Path, code: int) -> None:
    arguments = tmp_path / "arguments"
    bookies = {"writable": 3 if not code else 0, "read-only": 12, "down": 7}
    answer = json.dumps({"metadata_service": "x", "instance_id": "1-2-3", "layout": "Y", "bookies": bookies})
    program = f"printf '%s\\n' \"$@\" >{arguments}; echo '{answer}'; exit {code}"
    ended, log = run_script(tmp_path, program, commands.look())
    assert (ended.returncode, ended.stderr, log.read_text()) == (0, "", f"1-2-3 {bookies['writable']} 12\n")
    assert parsed(arguments.read_text().split("\n")[:-1])["as_json"] is True


def test_a_backup_tells_its_file_and_how_many_ledgers_are_in_it(tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    answer = json.dumps({"nodes": 90, "ledgers": 12, "file": "/backups/metadata-1", "sha256": "ab", "removed": ["x"]})
    ended, log = run_script(
        tmp_path, f"printf '%s\\n' \"$@\" >{arguments}; echo '{answer}'", commands.back_up(cluster(), 7)
    )
    assert (ended.returncode, ended.stderr, log.read_text()) == (0, "", "12 /backups/metadata-1\n")
    options = parsed(arguments.read_text().split("\n")[:-1])
    assert (options["uri"], options["file"], options["keep"]) == (metadata_service_uri(cluster()), "/backups", 7)
    assert options["as_json"] is True


def test_a_backup_that_fails_keeps_its_exit_code_and_tells_no_file(tmp_path: Path) -> None:
    ended, log = run_script(tmp_path, "echo 'bookie: no space' >&2; exit 4", commands.back_up(cluster(), 7))
    assert (ended.returncode, log.exists()) == (4, False)


def test_a_look_that_finds_nothing_fails(tmp_path: Path) -> None:
    ended, log = run_script(tmp_path, "exit 12", commands.look())
    assert (ended.returncode, log.exists()) == (1, False)


def test_the_job_tells_the_instance_id_and_nothing_else(tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    answer = '{"uri": "x", "instance_id": "1-2-3"}'
    ended, log = run_initialisation(tmp_path, f"printf '%s\\n' \"$@\" >{arguments}; echo '{answer}'")
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, answer, "")
    assert log.read_text() == "1-2-3\n"
    options = parsed(arguments.read_text().split("\n")[:-1])
    assert options["if_absent"] is True
    assert options["as_json"] is True
    assert options["uri"] == "zk+hierarchical://zk-0.zk:2181;zk-1.zk:2181/ledgers"
    assert options["instance_id"] == cluster().uid


def test_a_job_that_fails_keeps_its_exit_code_and_tells_no_id(tmp_path: Path) -> None:
    ended, log = run_initialisation(tmp_path, "echo 'bookie: no answer' >&2; exit 4")
    assert (ended.returncode, ended.stderr.strip()) == (4, "bookie: no answer")
    assert not log.exists()


@pytest.mark.parametrize("instance_id", ["", INSTANCE_ID])
def test_clients_of_oxia_are_sent_to_the_service_of_the_embedded_metadata(instance_id: str) -> None:
    view = cluster(EMBEDDED, instance_id=instance_id)  # with one, of an earlier operator, it serves without TLS
    (pod,) = [
        each["spec"]["template"]["spec"]
        for each in embedded_service(view, BuildContext())
        if each["kind"] == "StatefulSet"
    ]
    told = parsed(pod["containers"][0]["args"])["oxia_address"]
    assert f"embedded://{told}{view.spec.metadata_service.root_path}" == metadata_service_uri(view)
