"""Where buckets cut a matrix on ranks whose gradients are of unlike dtypes."""

from __future__ import annotations

import pytest
import torch

from ratrain.cost.scratch import BUCKET_ROWS, product_rows
from ratrain.devices import CPU
from ratrain.models.functions.rows import Rows
from ratrain.models.parameters import lay_out
from ratrain.models.weights import Weights, rows_at_once
from ratrain.runtime.step.exchange.buckets import made_buckets

ROWS, WIDTH, TOKENS = 3000, 768, 24


@pytest.mark.parametrize("width", [1, 32, 768, 1023, 4096, 100_000, 131_072, 140_000, 3_000_000])
def test_pieces_of_products_are_as_large_as_costs_count_and_cut_behind_whole_blocks(
    width: int,
) -> None:
    rows = rows_at_once(width)
    assert rows == product_rows(width)
    assert rows == 1 or rows * width <= 1 << 20
    assert rows < BUCKET_ROWS or rows % BUCKET_ROWS == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_matrix_cut_as_wider_gradients_need_has_the_bits_of_the_whole_one(
    dtype: torch.dtype,
) -> None:
    """On a rank of fp32 too, whose own products have no pieces."""
    torch.manual_seed(1)
    layout = lay_out([("matrix", (ROWS, WIDTH))])
    back = torch.randn(TOKENS, ROWS).to(dtype)
    inputs = torch.randn(TOKENS, WIDTH).to(dtype)
    whole = torch.zeros(layout.size)
    weights = Weights(layout)
    weights.attach_gradient(whole)
    weights.add_product("matrix", Rows(back), Rows(inputs))

    size_bytes = 4 * WIDTH * rows_at_once(WIDTH)
    buckets = made_buckets(
        4, size_bytes, layout.size, 1, torch.float32, CPU, widest=4, in_pieces=True
    )
    filler = buckets.filler()
    weights.attach_sink(filler)
    weights.add_product("matrix", Rows(back), Rows(inputs))
    filler.finish()
    buckets.complete()
    cut = torch.zeros(layout.size)
    for bucket in buckets.filled():
        for span in bucket.spans:
            assert span.begin % (BUCKET_ROWS * WIDTH) == 0
            cut[span.begin : span.begin + span.count] = bucket.memory[span.at :][: span.count]
    assert torch.equal(cut, whole)


def test_buckets_have_as_many_elements_where_they_are_narrower() -> None:
    made = [
        made_buckets(1, 4096, 10_000, 1, dtype, CPU, widest=4, in_pieces=False)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    sizes: list[int] = []
    for buckets in made:
        places = lay_out([("vector", (1024,))]).parameters
        filler = buckets.refilled()
        sizes += [len(place) for _, place in filler.places(places[0])]
    assert sizes == [1024, 1024]
