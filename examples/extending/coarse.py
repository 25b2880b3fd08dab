from contextlib import contextmanager

from ratrain.describe.runs_on import RunsOn, declare_device

WORDS = "a CPU whose products round their factors to bf16"
declare_device(RunsOn("coarse", WORDS, "coarse:made"))


def made(number):
    """The device of that number, of those on a host."""
    import torch

    from ratrain.devices.cpu import CPU, Cpu
    from ratrain.devices.operators import Intercepting

    def answer(operator, args, further):
        if operator is torch.ops.aten.mm.default:
            args = [factor.bfloat16().to(factor.dtype) for factor in args]
        return operator(*args, **further)

    class Coarse(Cpu):
        kind, words = "coarse", WORDS

        @contextmanager
        def stream(self, lane):
            with Intercepting(answer), CPU.stream(lane) as stream:
                yield stream

    return Coarse()
