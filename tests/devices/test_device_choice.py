"""Which device a rank computes on."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain
from ratrain.describe.runs_on import RUNS_ON
from ratrain.devices import CPU, device_of_kind, gpus_here
from ratrain.errors import SpecError


def test_a_device_of_a_kind_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(SpecError, match="tpu") as refused:
        device_of_kind("tpu")
    assert refused.value.fix is not None
    assert all(kind in refused.value.fix for kind in RUNS_ON)


@pytest.mark.skipif(gpus_here() > 0, reason="this host has a GPU")
def test_a_gpu_that_is_not_there_is_refused_with_the_way_to_choose_the_cpu() -> None:
    with pytest.raises(SpecError) as refused:
        device_of_kind("cuda")
    assert refused.value.fix is not None
    assert "--device cpu" in refused.value.fix


def test_work_of_the_cpu_is_done_when_its_call_returns() -> None:
    with device_of_kind("cpu", 3).stream("compute") as stream:
        stream.finish()
    CPU.mark().wait()


@pytest.mark.skipif(gpus_here() > 0, reason="this host has a GPU")
def test_a_run_for_a_gpu_that_is_not_there_is_refused_before_it_is_planned() -> None:
    words = ["train", "examples/quickstart.toml", "--device", "cuda"]
    ran = CliRunner().invoke(ratrain, words)
    assert isinstance(ran.exception, SpecError)
    assert "GPU" in ran.exception.what or "CUDA" in ran.exception.what
