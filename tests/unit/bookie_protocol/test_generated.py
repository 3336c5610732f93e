"""The checked-in modules are what the protos generate."""

from bookie_protocol.generate import MESSAGES, ROOT, SERVICES, generate


def without_tool_version(text: str) -> list[str]:
    """Without what depends on the versions of protoc and grpcio-tools only."""
    numbers = {f"    {n}," for n in range(100)}
    return [line for line in text.splitlines() if "VERSION" not in line.upper() and line not in numbers]


def test_the_checked_in_modules_are_up_to_date():
    generated = generate()
    assert len(generated) == 2 * len(MESSAGES) + 3 * len(SERVICES)
    for path, text in generated.items():
        fresh = without_tool_version(text) == without_tool_version((ROOT / path).read_text())
        assert fresh, f"{path} is not what its proto generates: run python -m bookie_protocol.generate"
