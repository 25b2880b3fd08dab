"""Training by partitions is training in memory."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

import pytest
import torch
from graph_made import (
    KINDS,
    OF_SEVERAL,
    drawn_graph,
    file_of,
    laid_out,
    tight,
    training,
    worst_error,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.graph.program import MODES


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), [*product(KINDS, MODES)])
def test_gradients_of_every_mode_are_those_in_memory_in_every_epoch(
    kind: str, mode: str, tmp_path: Path
) -> None:
    spec = file_of(kind)
    laid = laid_out(spec, drawn_graph(1), 5).in_mode(mode)
    columns = tight(laid, mode, 2)
    if mode != "cache":
        assert columns.program.read_bytes > 5 * 4096
    assert worst_error(spec, laid, columns, tmp_path) < 1e-12


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    mode=st.sampled_from(sorted(MODES)),
    parts=st.integers(1, 9),
    group=st.integers(1, 4),
    directed=st.booleans(),
    width=st.integers(1, 9),
    nodes=st.integers(2, 40),
)
@settings(max_examples=25, deadline=None)
def test_any_graph_in_any_partition_has_the_gradients_in_memory(
    seed: int, kind: str, mode: str, parts: int, group: int, directed: bool, width: int, nodes: int
) -> None:
    spec = file_of(kind, directed=directed)
    data = drawn_graph(seed, nodes=nodes, edges=2 * nodes, width=width, directed=directed)
    laid = laid_out(spec, data, parts, seed).in_mode(mode)
    with tempfile.TemporaryDirectory() as folder:
        assert worst_error(spec, laid, tight(laid, mode, group), Path(folder)) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_modes_of_the_same_open_sums_leave_the_same_bits(kind: str, tmp_path: Path) -> None:
    spec = file_of(kind, precision="float32")
    laid = laid_out(spec, drawn_graph(3), 5)
    weights: list[list[torch.Tensor]] = []
    for mode in OF_SEVERAL:
        with training(spec, laid, tight(laid, mode, 2), tmp_path / mode) as made:
            for _ in range(2):
                made.epoch()
            weights.append([value.detach().clone() for value in made.parameters.values()])
    for other in weights[1:]:
        for one, two in zip(weights[0], other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.slow  # torch.optim takes seconds to import
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_optimizers_are_torchs(optimizer: str) -> None:
    from dataclasses import replace

    from ratrain.graph.optimize import Optimizer
    from ratrain.graph.spec import TrainKeys

    keys = replace(TrainKeys(weight_decay=0.1), optimizer=optimizer)  # type: ignore[arg-type]
    ours = {"w": torch.linspace(-1, 1, 12, dtype=torch.float64).requires_grad_()}
    theirs = ours["w"].detach().clone().requires_grad_()
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer]
    torchs = kind([theirs], lr=keys.learning_rate, weight_decay=keys.weight_decay)
    made = Optimizer(keys, ours)
    for step in range(5):
        ours["w"].grad = torch.sin(torch.arange(12, dtype=torch.float64) + step)
        theirs.grad = ours["w"].grad.clone()
        made.step()
        torchs.step()
    assert torch.allclose(ours["w"], theirs, rtol=0, atol=1e-14)
