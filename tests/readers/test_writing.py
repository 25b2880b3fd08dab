"""A file is written whole or not at all, and a link stays a link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ratrain.errors import SpecError
from ratrain.readers.writing import write_whole

WRITES = "import sys; from pathlib import Path; from ratrain.readers.writing import write_whole; "
SAYS = WRITES + "print('before'); write_whole(Path(sys.argv[1]), 'text\\n'); print('after')"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "new.json"
    target.mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        write_whole(target, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]
    with pytest.raises(SpecError, match="cannot be written"):
        write_whole(tmp_path / "no such folder" / "new.json", "text")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_the_old_file_and_no_half_file(tmp_path: Path) -> None:
    target = tmp_path / "new.json"
    write_whole(target, "old")
    (tmp_path / "new.json.partial").symlink_to("/dev/full")
    with pytest.raises(SpecError, match="No space left"):
        write_whole(target, "new" * 10_000)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["new.json"]


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to("target")
    write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    link.unlink()
    link.symlink_to("not there yet")
    write_whole(link, "newer")
    assert link.is_symlink() and (tmp_path / "not there yet").read_text() == "newer"


@pytest.mark.parametrize("redirected", ["file", "pipe"])
def test_a_link_to_standard_output_prints_between_what_is_printed(
    redirected: str, tmp_path: Path
) -> None:
    link, out = tmp_path / "stdout", tmp_path / "out.txt"
    link.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-c", SAYS, str(link)]
    if redirected == "file":
        with out.open("w") as file:
            subprocess.run(command, stdout=file, check=True)
        printed = out.read_text()
    else:
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed == "before\ntext\nafter\n"
    assert link.is_symlink()
