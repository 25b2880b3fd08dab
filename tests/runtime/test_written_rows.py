"""Rows of a run that cannot be written: the file, the cause and the fix are named."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratrain.errors import SpecError
from ratrain.runtime.failures import worded
from ratrain.runtime.rank.metrics import MetricsLog, Row
from ratrain.runtime.rank.trackers import TensorBoard
from ratrain.runtime.run_folder import RunFolder

ROW: Row = {
    "step": 1,
    "loss": 1.0,
    "learning_rate": 1.0,
    "tokens_per_s": 1.0,
    "step_time_s": 1.0,
    "time_s": 1.0,
    "ranks": [
        dict.fromkeys(("step_time_s", "reduce_s", "gather_s", "update_s", "ledger_peak_bytes"), 1.0)
        | {"allocated_peak_bytes": None}
    ],
}


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("kind", ["metrics", "tensorboard"])
def test_a_row_that_cannot_be_written_names_its_file_and_the_limit(
    kind: str, tmp_path: Path
) -> None:
    log = MetricsLog(RunFolder(tmp_path)) if kind == "metrics" else TensorBoard(tmp_path / kind)
    with pytest.raises(SpecError, match=rf"{tmp_path}/{kind}.*: File too large\n.*ulimit -f"):
        for _ in range(1000):
            log.write(ROW)


def test_what_the_system_refuses_of_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError) as error:
        (tmp_path / "absent" / "file").touch()
    failure = worded(error.value, 3)
    assert failure.place == f"{tmp_path}/absent/file"
    assert "No such file" in failure.what and failure.fix == "give a folder that exists"
