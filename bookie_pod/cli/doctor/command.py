"""`bookie doctor`: what is wrong, or will be, on the machine of a bookie, with a remedy for each finding."""

from __future__ import annotations

import click

from bookie_pod.cli.options import AS_JSON, config_option, overrides, set_option


@click.command()
@config_option("Configuration of the bookie.")
@set_option
@click.option("--no-writes", is_flag=True, help="Do not measure the disks: write nothing to them.")
@click.option("--strict", is_flag=True, help="Exit with 13 for warnings, too.")
@AS_JSON
def doctor(file: str | None, assignments: tuple[str, ...], no_writes: bool, strict: bool, as_json: bool) -> int:
    """Check the machine, the disks and the services of a bookie; print each finding with its remedy.

    Run it as the bookie's user, on its machine, before the first start or beside the running bookie. It needs the
    configuration alone. It measures the latency of syncs and the throughput of each disk for a few seconds, writes at
    most 140 MB to a disk, writes nothing where that would fill it, and leaves nothing behind.

    Exit codes: 0 no problem, 13 a problem (--strict: or a warning), 12 no problem, but a check could not tell.
    """
    from bookie_pod.cli.doctor.checks import all_findings
    from bookie_pod.cli.doctor.findings import exit_code, print_findings
    from bookie_pod.config.load import load_config

    findings = all_findings(load_config(file, overrides=overrides(assignments, {})), measure=not no_writes)
    print_findings(findings, as_json=as_json)
    return exit_code(findings, strict=strict)
