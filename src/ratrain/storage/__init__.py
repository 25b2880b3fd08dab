"""States on disk while a run trains: files of one rank, written whole and read whole, again and
again. They are the run's memory, not its checkpoint: nothing is read from them after it has ended.

- `pages`: buffers and sizes that direct input and output takes;
- `files`: the operating system's calls, and what a file system can do;
- `folder`: whose files they are, a lock, and what is left over after a kill;
- `store`: the states by name, with versions, counts checked and limits on every wait;
- `measured`: what a disk does a second.
"""

from ratrain.storage.files import Files, OsFiles
from ratrain.storage.folder import LeftOver, is_tier, left_over, remove_left_over
from ratrain.storage.measured import DiskRates, disk_rates
from ratrain.storage.pages import PAGE, in_pages, page_buffer
from ratrain.storage.store import Key, StoreLimits, TierStore, Traffic

__all__ = [
    "PAGE",
    "DiskRates",
    "Files",
    "Key",
    "LeftOver",
    "OsFiles",
    "StoreLimits",
    "TierStore",
    "Traffic",
    "disk_rates",
    "in_pages",
    "is_tier",
    "left_over",
    "page_buffer",
    "remove_left_over",
]
