"""New lines of a run's metrics, while it goes."""

from __future__ import annotations

from ratrain.errors import SpecError
from ratrain.readers.json import as_table, parse_json
from ratrain.runtime.rank.rows import Row
from ratrain.runtime.run_folder import RunFolder


class Follower:
    """Reads the lines of the metrics that were written since it was last asked."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.metrics
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def new_rows(self) -> list[Row]:
        """Whole lines only; a line that is being written comes the next time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete_lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete_lines)
        rows: list[Row] = []
        for line in complete_lines.splitlines():
            try:
                row, _ = as_table(*parse_json(line, str(self._path), finite=False))
            except SpecError:  # cut by a kill; a restarted run writes the step again
                continue
            rows.append(row)
        return rows
