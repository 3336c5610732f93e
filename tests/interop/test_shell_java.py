"""Apache's shell and ours: no command of Apache's is unknown here, and no option."""

from __future__ import annotations

from bookie_pod.cli.shell import REFUSED, TRANSLATIONS
from tests.interop.java_programs import shell_commands


def test_every_command_and_option_is_known(class_path):
    """Also those that are refused with what serves instead. An option takes a value here if it does there."""
    theirs = shell_commands(class_path)
    assert {"listbookies", "cookie_get", "recover"} <= theirs.keys()
    assert theirs.keys() - {"help"} <= TRANSLATIONS.keys() | REFUSED.keys()
    for command in theirs.keys() & TRANSLATIONS.keys():
        ours = {
            name: word.endswith("=")
            for word in TRANSLATIONS[command].options.split()
            for name in word.removesuffix("=").split("|")
        }
        for option in theirs[command]:
            for name in set(option.removesuffix("=").split("|")) - {"h", "help"}:
                assert ours.get(name) is option.endswith("="), f"{command} -{name}"
