"""A unit's way back through autograd's graph."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ratrain.models.graphs import gradient_of_leaf, graph_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scalar", [False, True])
def test_a_leaf_s_gradient_has_the_bits_that_autograd_gives_by_itself(
    dtype: torch.dtype, scalar: bool
) -> None:
    weights = torch.randn(8, 5, dtype=dtype)
    leaf = torch.randn(3, 5, dtype=dtype, requires_grad=True)

    def output() -> torch.Tensor:
        made = torch.nn.functional.linear(leaf, weights).tanh()
        return made.sum() if scalar else made

    gradient = torch.randn_like(output())
    (wanted,) = torch.autograd.grad([output()], [leaf], [gradient])
    result = gradient_of_leaf(graph_of(output(), leaf), gradient)
    assert result is not None
    assert torch.equal(result, wanted)


def test_an_output_that_does_not_depend_on_the_leaf_gives_it_no_gradient() -> None:
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert gradient_of_leaf(graph_of(other * 2, leaf), torch.ones(2)) is None


def test_the_gradient_handed_over_is_let_go_when_it_has_been_used() -> None:
    leaf = torch.ones(2, requires_grad=True)
    graph = graph_of(leaf * 2, leaf)
    gradient_of_leaf(graph, torch.ones(2))
    assert graph.handed.gradient is None


def test_a_gradient_of_another_shape_is_refused() -> None:
    leaf = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="shape"):
        gradient_of_leaf(graph_of(leaf * 2, leaf), torch.ones(3))


@pytest.mark.slow
def test_a_rank_goes_back_without_importing_sympy() -> None:
    code = """
import sys, torch
import ratrain.runtime.rank.rank_run
from ratrain.models.graphs import gradient_of_leaf, graph_of
leaf = torch.ones(2, requires_grad=True)
gradient_of_leaf(graph_of(leaf * 2, leaf), torch.ones(2))
print("sympy" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
