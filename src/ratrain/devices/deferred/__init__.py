"""`deferred`: a device that finds missing order, in Python alone, on any machine.

Each operator waits in its lane's queue and runs later, in a random order among what is awaited;
freed memory is NaN; two accesses that nothing orders are an error that names both. For tests, and
for who writes schedules, passes, kinds of ops or kernels.
"""

from ratrain.devices.deferred.backend import register
from ratrain.devices.deferred.device import SEED, Deferred

__all__ = ["SEED", "Deferred", "register"]
