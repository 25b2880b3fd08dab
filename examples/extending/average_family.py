import numpy as np

from ratrain.describe.saved import Saved, declare_saved
from ratrain.program.families import Per, Sizing, declare_family
from ratrain.program.tiers import HOST


def average_bytes(s: Sizing) -> np.ndarray:
    """fp32 weights, a third of the optimizer's bytes; each owner has its own part."""
    asked = "weight-average" in s.setup.notes
    whole = s.of("optimizer_bytes") // 3
    return asked * np.where(s.units.reduced & (s.setup.sharding > 0), s.shared(whole), whole)


declare_family("average", Per.UNIT, average_bytes, persistent=True, tier=HOST)
declare_saved(Saved("average", "average", begins="weights"))
