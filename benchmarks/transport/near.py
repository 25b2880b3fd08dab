"""The near end of one of ours, in a process of its own: `near.py sock|shm|mapped`.

`peers.py` starts it and asks over a pipe, as it does with NIXL and Mooncake (others.py): engines
and torch in one process take the interpreter from each other.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ours import Pair  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
    mapped = sys.argv[1] == "mapped"
    pair = Pair("shm" if mapped else sys.argv[1], allocate=mapped)
    print(json.dumps({"value": 0}), flush=True)
    for line in sys.stdin:
        what, size, count = json.loads(line)
        print(json.dumps({"value": getattr(pair, what)(size, count)}), flush=True)
    pair.close()
