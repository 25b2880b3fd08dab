"""What kernels compute, in FP64, as plain formulas: their values are compared with these."""

from __future__ import annotations

import numpy as np

from ratrain.kernels import rows as constants
from ratrain.kernels.tiles import Array

Values = dict[str, Array]


def nn(t: Values, **_: int) -> Values:
    return {"c": t.get("c", 0.0) + t["a"] @ t["b"]}


def nt(t: Values, **_: int) -> Values:
    return {"c": t["c"] + t["a"] @ t["b"].T}


def tt(t: Values, **_: int) -> Values:
    return {"c": t["c"] + t["a"].T @ t["b"].T}


def _heads(t: Values, heads: int, length: int) -> Values:
    return {name: value.reshape(heads, length, -1) for name, value in t.items()}


def _scores(t: Values, length: int, width: int, causal: int) -> Array:
    scores = t["q"] @ t["k"].transpose(0, 2, 1) / np.sqrt(width)
    later = np.triu(np.ones((length, length), bool), 1) & bool(causal)
    return np.where(later, -np.inf, scores)


def attention(t: Values, heads: int, length: int, width: int, causal: int, **_: int) -> Values:
    t = _heads(t, heads, length)
    scores = _scores(t, length, width, causal)
    highest = scores.max(2, keepdims=True)
    lse = highest + np.log(np.exp(scores - highest).sum(2, keepdims=True))
    out = np.exp(scores - lse) @ t["v"]
    return {"o": out.reshape(-1, width), "lse": lse.reshape(-1, 1)}


def attention_backward(
    t: Values, heads: int, length: int, width: int, causal: int, **_: int
) -> Values:
    t = _heads(t, heads, length)
    p = np.exp(_scores(t, length, width, causal) - t["lse"])
    dot = (t["do"] * t["o"]).sum(2, keepdims=True)
    ds = p * (t["do"] @ t["v"].transpose(0, 2, 1) - dot) / np.sqrt(width)
    turned = ds.transpose(0, 2, 1)
    out = {"dq": ds @ t["k"], "dk": turned @ t["q"], "dv": p.transpose(0, 2, 1) @ t["do"]}
    return {name: value.reshape(-1, width) for name, value in out.items()}


def rmsnorm(t: Values, **_: int) -> Values:
    return {"y": t["x"] * _inverse(t["x"]) * t["gain"]}


def rmsnorm_backward(t: Values, **_: int) -> Values:
    inverse, slope = _inverse(t["x"]), t["dy"] * t["gain"]
    normed = t["x"] * inverse
    dx = inverse * (slope - normed * (slope * normed).mean(1, keepdims=True))
    return {"dx": dx, "dgain": (t["dy"] * normed).sum(0, keepdims=True)}


def _inverse(x: Array) -> Array:
    return 1 / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def swiglu(t: Values, **_: int) -> Values:
    return {"y": t["gate"] * _sigmoid(t["gate"]) * t["up"]}


def swiglu_backward(t: Values, **_: int) -> Values:
    gate, s = t["gate"], _sigmoid(t["gate"])
    return {"dgate": t["dy"] * t["up"] * s * (1 + gate * (1 - s)), "dup": t["dy"] * gate * s}


def rotary(t: Values, rows: int, heads: int, width: int, **_: int) -> Values:
    x = t["x"].reshape(rows, heads, 2, width // 2)
    cos, sin = t["cos"][:, None], t["sin"][:, None]
    left, right = x[:, :, 0] * cos - x[:, :, 1] * sin, x[:, :, 1] * cos + x[:, :, 0] * sin
    return {"y": np.stack([left, right], 2).reshape(rows, -1)}


def cross_entropy(t: Values, rows: int, vocabulary: int, **_: int) -> Values:
    x = t["logits"]
    chosen = np.arange(vocabulary) == t["target"]
    highest = x.max(1, keepdims=True)
    lse = highest + np.log(np.exp(x - highest).sum(1, keepdims=True))
    loss = lse - (x * chosen).sum(1, keepdims=True)
    return {"loss": loss, "dlogits": (np.exp(x - lse) - chosen) / rows}


def adamw(t: Values, **_: int) -> Values:
    rate, beta1, beta2, epsilon, decay = (
        float(each)
        for each in (
            *(constants.RATE, constants.BETA1, constants.BETA2),
            *(constants.ADAM_EPSILON, constants.DECAY),
        )
    )
    mean = beta1 * t["mean"] + (1 - beta1) * t["gradient"]
    square = beta2 * t["square"] + (1 - beta2) * t["gradient"] ** 2
    step = rate * (mean / (1 - beta1)) / (np.sqrt(square / (1 - beta2)) + epsilon)
    weights = t["weights"] * (1 - rate * decay) - step
    return {"weights": weights, "mean": mean, "square": square, "view": weights}
