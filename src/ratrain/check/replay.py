"""A kept call, made again on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ratrain.check.bounds import is_declared
from ratrain.check.call import on_host
from ratrain.check.compare import Difference, compare
from ratrain.check.kept import KeptCall
from ratrain.check.record import Where
from ratrain.devices import Device
from ratrain.devices.operators import mapped
from ratrain.errors import SpecError


@dataclass(frozen=True)
class Replayed:
    """A call made again. `before`: what was kept of it; `same`: whether its results are the very
    bits of then."""

    operator: str
    device: str
    where: Where
    arguments: tuple[str, ...]
    rule: str
    before: Difference
    now: Difference
    same: bool

    def body(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "operator": self.operator,
            "device": self.device,
            "where": vars(self.where),
            "arguments": list(self.arguments),
            "rule": self.rule,
            "kept": vars(self.before),
            "now": vars(self.now),
            "same": self.same,
            "right": not self.now.wrong,
        }

    def lines(self) -> list[str]:
        """For people."""
        same = "the same bits as then" if self.same else "other bits than then"
        rows = (("kept", self.before), ("now", self.now))
        return [
            f"{self.operator} on {self.device}, of {self.where.words}",
            *(f"  {line}" for line in self.arguments),
            *(
                f"{name:6}off by at most {each.largest:.3g}: {each.times:.3g} times what is "
                f"allowed; cosine {each.cosine:.6f}"
                for name, each in rows
            ),
            f"{same}; {'WRONG' if self.now.wrong else 'right'}",
        ]


def replay(kept: KeptCall, device: Device) -> Replayed:
    """Makes a kept call on a device."""
    call = kept.call
    with device.stream("compute") as stream:
        args, further = (
            mapped(lambda x: _on(x, device), value) for value in (call.args, dict(call.further))
        )
        try:
            made = call.operator(*args, **further)
        except (RuntimeError, NotImplementedError) as error:
            first = str(error).partition("\n")[0]
            raise SpecError(
                f"{call.name} cannot be computed there: {first}",
                place=f"device {device.kind}",
                fix="choose another device with --device",
            ) from error
        stream.finish()
        results: list[Tensor] = on_host(call.results(made, args, further))
    device.finish()
    before, now = compare(call, kept.results), compare(call, results)
    assert before is not None and now is not None
    same = all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(results, kept.results, strict=True)
    )
    words = tuple(f"{name}: {_words(value)}" for name, value in call.named.items())
    rule = "declared" if is_declared(call.family) else "measured"
    return Replayed(call.name, device.kind, Where(**kept.where), words, rule, before, now, same)


def _on(x: Any, device: Device) -> Any:
    """A value as the device has it: tensors keep their strides."""
    if isinstance(x, torch.device):
        return device.place
    if not isinstance(x, Tensor):
        return x
    there = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device.place)
    return there.copy_(x)


def _words(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} {tuple(value.shape)}, strides {tuple(value.stride())}"
    text = str(value)
    return text if len(text) < 60 else f"{text[:57]}..."
