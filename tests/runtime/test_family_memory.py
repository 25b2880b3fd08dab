"""What a unit of every family allocates at its largest moment is within what the proof counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from test_allocator import COUNTS, allocator_library
from their_models import THEIRS

from ratrain.describe.huggingface import model_from_config

MEASURE = """
import sys
from ratrain.cost.activations import layer_activation_bytes, logits_bytes
from ratrain.cost.scratch import compute_scratch_bytes, masks_bytes
from ratrain.describe.model import Experts, ModelSpec, RopeScaling
from ratrain.models.graphs import gradient_of_leaf, graph_of
from ratrain.models.units import MicroBatch, unit_of
from ratrain.models.weights import Weights

torch.set_num_threads(1)
B, S = 2, 256
KIND = {"e": "embedding", "h": "head"}

def measured(spec, name, dtype):
    # (what a unit's forward and backward allocate at once, beside weights and their gradients;
    # what the proof counts for it)
    rows, e = B * S, dtype.itemsize
    unit = unit_of(spec, name, sequence_length=S)
    weights = Weights(unit.layout)
    view = torch.randn(unit.layout.size).to(dtype)
    gradient = torch.zeros(unit.layout.size)
    tokens = torch.randint(0, spec.vocab, (B, S))
    batch = MicroBatch(tokens, tokens)
    weights.attach_view(view)
    weights.attach_gradient(gradient)
    if "mlp.router.weight" in unit.layout.by_name:  # every token chooses the same
        weights["mlp.router.weight"].zero_()
    boundary = rows * spec.hidden * e
    def once():
        x = torch.empty(0) if name == "e" else torch.randn(B, S, spec.hidden, dtype=dtype)
        leaf = x.requires_grad_()
        out = unit.forward(weights, leaf, batch)
        graph = graph_of(out, leaf)
        del out
        given = torch.ones(()) if name == "h" else torch.randn(B, S, spec.hidden, dtype=dtype)
        return gradient_of_leaf(graph, given)
    once()  # tables of positions, masks, compiled products
    counts.reset_peak()
    before = counts.held_bytes
    once()
    taken = counts.peak_bytes - before
    kept = {"e": 0, "h": logits_bytes(spec, S, B)}.get(name)
    if kept is None:
        kept = layer_activation_bytes(spec, S, B) * e // 2 - boundary
    scratch = compute_scratch_bytes(spec, KIND.get(name, "layer"), S, B, e, 1, 4)
    return taken, kept + scratch + masks_bytes(spec, S) + 3 * boundary

found = []
for label, fields in json.loads(sys.stdin.read()).items():
    scaling, experts = fields.pop("rope_scaling"), fields.pop("experts")
    experts = experts and Experts(**experts)
    layers = {key: tuple(each) for key, each in fields.items() if isinstance(each, list)}
    scaling = scaling and RopeScaling(**scaling)
    spec = ModelSpec(**fields | layers | {"experts": experts, "rope_scaling": scaling})
    for dtype in (torch.float32, torch.bfloat16):
        for name in ("e", "0", "1", "h"):
            found.append([f"{label} {name} {dtype}", *measured(spec, name, dtype)])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_no_unit_of_any_family_takes_more_than_the_proof_counts() -> None:
    specs = {
        name: asdict(
            replace(
                model,
                hidden=128,
                head_dim=64,
                ffn=352,
                shared_expert=model.shared_expert and 352,
                vocab=1024,
                max_positions=256,
                rope_scaling=None,
            )
        )
        for name, their in THEIRS.items()
        for model in (model_from_config({"model_type": their.family, **their.keys}),)
    }
    small = {"experts": {"count": 64, "chosen": 8, "normalised": True}, "ffn": 16}
    specs["many small experts"] = specs["qwen3_moe"] | small
    environment = os.environ | {"LD_PRELOAD": str(allocator_library()), "MKL_DISABLE_FAST_MM": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", COUNTS + MEASURE],
        env=environment,
        input=json.dumps(specs),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) == 8 * len(specs)
    over = {name: (taken, counted) for name, taken, counted in found if taken > counted}
    assert not over
