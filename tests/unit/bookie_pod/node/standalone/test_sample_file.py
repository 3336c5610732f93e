"""The generated log."""

from bookie_pod.node.standalone.trial import write_sample_log


def test_it_has_the_size_asked_for_and_is_the_same_every_time(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    write_sample_log(one, 700_001)
    write_sample_log(two, 700_001)
    assert one.stat().st_size == 700_001
    assert one.read_bytes() == two.read_bytes()


def test_it_is_text_in_which_every_line_differs(tmp_path):
    path = tmp_path / "log"
    write_sample_log(path, 300_000)
    lines = path.read_text().splitlines()
    assert len(set(lines)) == len(lines) > 3000
    stamps = [line.split(" ", 1)[0] for line in lines[:-1]]
    assert stamps == sorted(stamps)


def test_an_empty_one(tmp_path):
    write_sample_log(tmp_path / "none", 0)
    assert (tmp_path / "none").read_bytes() == b""
