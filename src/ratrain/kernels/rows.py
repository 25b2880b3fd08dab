"""What stands between products, as tile programs: each streams its tensors past AM once, so DDR is
what takes the time. Slots (vector instructions for 32 FP32 values) are counted from the formulas;
of exponentials and roots they are assumed."""

from __future__ import annotations

import numpy as np

from ratrain.kernels.attention import EXP_SLOTS
from ratrain.kernels.build import Kernel
from ratrain.kernels.machine import AM, GSM
from ratrain.kernels.tiles import Array

EPSILON = np.float32(1e-5)
RATE, BETA1, BETA2, ADAM_EPSILON, DECAY = (np.float32(v) for v in (1e-3, 0.9, 0.95, 1e-8, 0.1))
ROOT_SLOTS = 6  # seed and two steps of Newton; assumed


def rmsnorm(k: Kernel, rows: int, width: int, tile: int = 8) -> None:
    """y = x gain / sqrt(mean(x^2) + 1e-5)."""
    x, y = k.input("x", rows, width, "f2"), k.output("y", rows, width, "f2")
    gain = k.input("gain", 1, width, "f2")
    gains = [core.load(gain[:, :], AM, "gain", 1) for core in k.cores]
    for core, part in k.deal(rows, tile, fold="rows"):
        here = core.load(x[part, :], AM, "x", 2)
        inverse = core.tile(here.shape[0], 1, "f4", "inverse")
        core.reduce(inverse, _inverse_norm, here, slots=2)
        out = core.tile(*here.shape, "f2", "y", 2)
        core.map(out, lambda x, i, g: x * i * g, here, inverse, gains[core.number], slots=4)
        core.store(out, y[part, :])


def rmsnorm_backward(k: Kernel, rows: int, width: int, tile: int = 4) -> None:
    """dx, and the sum over rows of dgain: of each core first, then of all over GSM."""
    x, dy = k.input("x", rows, width, "f2"), k.input("dy", rows, width, "f2")
    gain = k.input("gain", 1, width, "f2")
    dx, dgain = k.output("dx", rows, width, "f2"), k.output("dgain", 1, width, "f4")
    gains = [core.load(gain[:, :], AM, "gain", 1) for core in k.cores]
    sums = [core.tile(1, width, "f4", "dgain") for core in k.cores]
    for core, total in zip(k.cores, sums, strict=True):
        core.fill(total, 0.0)
    for core, part in k.deal(rows, tile, fold="rows"):
        here, slope = core.load(x[part, :], AM, "x", 2), core.load(dy[part, :], AM, "dy", 2)
        inverse, mean = (core.tile(here.shape[0], 1, "f4", n) for n in ("inverse", "mean"))
        core.reduce(inverse, _inverse_norm, here, slots=2)
        own = gains[core.number]
        core.reduce(mean, _mean_slope, here, slope, inverse, own, slots=4)
        out = core.tile(*here.shape, "f2", "dx", 2)
        core.map(out, _norm_slope, here, slope, inverse, mean, own, slots=8)
        total = sums[core.number]
        core.reduce(
            total,
            lambda t, x, g, i: t + (x * i * g).sum(0, keepdims=True),
            *(total, here, slope, inverse),
            slots=5,
        )
        core.store(out, dx[part, :])
    for other, total in zip(k.cores[1:], sums[1:], strict=True):
        in_gsm = k.slot(other.number, GSM, "sums", len(k.cores) - 1, total)
        other.store(total, in_gsm)
        arrived = k.cores[0].load(in_gsm, AM, "others", 2)
        k.cores[0].map(sums[0], lambda a, b: a + b, sums[0], arrived, slots=1)
    k.cores[0].store(sums[0], dgain[:, :])


def swiglu(k: Kernel, rows: int, width: int, tile: int = 4) -> None:
    """y = gate sigmoid(gate) up."""
    gate, up = k.input("gate", rows, width, "f2"), k.input("up", rows, width, "f2")
    y = k.output("y", rows, width, "f2")
    for core, part in k.deal(rows, tile, fold="rows"):
        g, u = core.load(gate[part, :], AM, "gate", 2), core.load(up[part, :], AM, "up", 2)
        out = core.tile(*g.shape, "f2", "y", 2)
        core.map(out, lambda g, u: g * _sigmoid(g) * u, g, u, slots=EXP_SLOTS + 9)
        core.store(out, y[part, :])


def swiglu_backward(k: Kernel, rows: int, width: int, tile: int = 2) -> None:
    """The gradients of gate and up."""
    gate, up, dy = (k.input(name, rows, width, "f2") for name in ("gate", "up", "dy"))
    dgate, dup = (k.output(name, rows, width, "f2") for name in ("dgate", "dup"))
    for core, part in k.deal(rows, tile, fold="rows"):
        tiles = [
            core.load(t[part, :], AM, name, 2)
            for t, name in ((gate, "gate"), (up, "up"), (dy, "dy"))
        ]
        out_g, out_u = (core.tile(*tiles[0].shape, "f2", name, 2) for name in ("dgate", "dup"))
        core.map(out_g, _gate_slope, *tiles, slots=EXP_SLOTS + 14)
        core.map(out_u, lambda g, dy: dy * g * _sigmoid(g), tiles[0], tiles[2], slots=EXP_SLOTS + 9)
        core.store(out_g, dgate[part, :])
        core.store(out_u, dup[part, :])


def rotary(k: Kernel, rows: int, heads: int, width: int, tile: int = 16) -> None:
    """Each head's two halves turned by the position's angles."""
    x, y = (make(n, rows, heads * width, "f2") for make, n in ((k.input, "x"), (k.output, "y")))
    cos, sin = (k.input(name, rows, width // 2, "f4") for name in ("cos", "sin"))
    half = width // 2
    for core, part in k.deal(rows, tile, fold="rows"):
        here = core.load(x[part, :], AM, "x", 2)
        c, s = core.load(cos[part, :], AM, "cos", 2), core.load(sin[part, :], AM, "sin", 2)
        out = core.tile(*here.shape, "f2", "y", 2)
        for head in range(heads):
            left = slice(head * width, head * width + half)
            right = slice(head * width + half, (head + 1) * width)
            pair = here[:, left], here[:, right], c, s
            core.map(out[:, left], lambda a, b, c, s: a * c - b * s, *pair, slots=4)
            core.map(out[:, right], lambda a, b, c, s: b * c + a * s, *pair, slots=4)
        core.store(out, y[part, :])


def cross_entropy(k: Kernel, rows: int, vocabulary: int, tile: int = 1) -> None:
    """The loss of each row, and the gradient of the mean over rows; a row stays in AM."""
    logits = k.input("logits", rows, vocabulary, "f2")
    target = k.input("target", rows, 1, "f4")
    loss = k.output("loss", rows, 1, "f4")
    slope = k.output("dlogits", rows, vocabulary, "f2")
    share = np.float32(1 / rows)
    for core, part in k.deal(rows, tile, fold="rows"):
        here = core.load(logits[part, :], AM, "logits", 2)
        wanted = core.load(target[part, :], AM, "target", 2)
        column = here.shape[0], 1, "f4"
        highest, total = core.tile(*column, "highest"), core.tile(*column, "total")
        core.reduce(highest, lambda x: x.max(1, keepdims=True), here)
        core.reduce(total, _exp_sum, here, highest, slots=EXP_SLOTS + 1)
        out_loss = core.tile(*column, "loss", 2)
        core.reduce(out_loss, _row_loss, here, highest, total, wanted, slots=3)
        core.store(out_loss, loss[part, :])
        out = core.tile(*here.shape, "f2", "dlogits", 2)
        core.map(
            out,
            lambda x, m, t, w: (np.exp(x - m) / t - _chosen(x, w)) * share,
            *(here, highest, total, wanted),
            slots=EXP_SLOTS + 5,
        )
        core.store(out, slope[part, :])


def adamw(k: Kernel, rows: int, width: int, tile: int = 4) -> None:
    """The first update: FP32 weights and moments renewed, and the FP16 weights made of them."""
    gradient = k.input("gradient", rows, width, "f2")
    names = ("weights", "mean", "square")
    held = [k.updated(name, rows, width, "f4") for name in names]
    view = k.output("view", rows, width, "f2")
    for core, part in k.deal(rows, tile, fold="rows"):
        g = core.load(gradient[part, :], AM, "gradient", 2)
        w, m, v = (core.load(t[part, :], AM, name, 2) for t, name in zip(held, names, strict=True))
        core.map(m, lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g, slots=3)
        core.map(v, lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g, slots=4)
        core.map(w, _adamw_step, w, m, v, slots=6 + 2 * ROOT_SLOTS)
        out = core.tile(*w.shape, "f2", "view", 2)
        core.map(out, lambda w: w, w, slots=1)
        for tile_, tensor in zip((w, m, v), held, strict=True):
            core.store(tile_, tensor[part, :])
        core.store(out, view[part, :])


def _inverse_norm(x: Array) -> Array:
    return 1 / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON)


def _mean_slope(x: Array, dy: Array, inverse: Array, gain: Array) -> Array:
    return (x * inverse * dy * gain).mean(1, keepdims=True)


def _norm_slope(x: Array, dy: Array, inverse: Array, mean: Array, gain: Array) -> Array:
    return inverse * (dy * gain - x * inverse * mean)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gate_slope(gate: Array, up: Array, dy: Array) -> Array:
    sigmoid = _sigmoid(gate)
    return dy * up * sigmoid * (1 + gate * (1 - sigmoid))


def _exp_sum(x: Array, highest: Array) -> Array:
    return np.exp(x - highest).sum(1, keepdims=True)


def _chosen(x: Array, target: Array) -> Array:
    """1 in each row's target column."""
    return (np.arange(x.shape[1]) == target).astype(x.dtype)


def _row_loss(x: Array, highest: Array, total: Array, target: Array) -> Array:
    return highest + np.log(total) - (x * _chosen(x, target)).sum(1, keepdims=True)


def _adamw_step(w: Array, m: Array, v: Array) -> Array:
    mean, square = m / (1 - BETA1), v / (1 - BETA2)
    return w * (1 - RATE * DECAY) - RATE * mean / (np.sqrt(square) + ADAM_EPSILON)
