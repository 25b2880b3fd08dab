"""The project's tables of step times as measured runs: what their columns leave unsaid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.validate.rows import MeasuredRun, run_of, shipped_cells, user_runs

LARGE_PARAMS_B = 100
"""Models of Narayanan et al. above this many billion parameters were held out of the fit."""


def sc21() -> tuple[MeasuredRun, ...]:
    """Narayanan et al. 2021, arXiv 2104.04473, table 1."""
    return tuple(
        run_of(
            {
                **row,
                "iter_s": row["iter_s_derived"],
                "held_out": "yes" if float(row["params_B"]) > LARGE_PARAMS_B else "no",
            }
        )
        for row in shipped_cells("megatron_sc21_table1")
    )


def korthikanti() -> tuple[MeasuredRun, ...]:
    """Korthikanti et al. 2022, arXiv 2205.05198, tables 3 and 5: full, then selective."""
    found: list[MeasuredRun] = []
    for row in shipped_cells("korthikanti_iteration"):
        interleaved = row["model"] == "175B"
        cells = {
            **row,
            "model": f"gpt-{row['model'].lower()}",
            "vstage_layers": "4" if interleaved else "",  # x3: 96 layers on 8 x 3 stages
            "held_out": "yes" if interleaved else "no",
        }
        found.append(run_of({**cells, "iter_s": row["full_s"]}))
        selective = {"recompute": "selective", "sequence_parallel": "yes"}
        found.append(run_of({**cells, "iter_s": row["new_s"], **selective}))
    return tuple(found)


def vtrain_multi() -> tuple[MeasuredRun, ...]:
    """VIA-Research/vTrain, several hosts: not one row was used to calibrate."""
    return tuple(
        run_of({**row, "cluster": "a100-deepspeed", "held_out": "yes"})
        for row in shipped_cells("vtrain_multi_node")
    )


def vtrain_single() -> tuple[MeasuredRun, ...]:
    """The same inside a host. Activations are taken to be kept: see docs/accuracy.md."""
    fixed = {
        "layers": "24",
        "hidden": "2048",
        "heads": "16",
        "sequence": "1024",
        "cluster": "a100-deepspeed",
        "recompute": "none",
        "held_out": "no",
    }
    return tuple(run_of({**row, **fixed}) for row in shipped_cells("vtrain_single_node"))


TIME_TABLES: dict[str, Callable[[], tuple[MeasuredRun, ...]]] = {
    "megatron_sc21_table1": sc21,
    "korthikanti_iteration": korthikanti,
    "vtrain_multi_node": vtrain_multi,
    "vtrain_single_node": vtrain_single,
}


def runs_of(name: str) -> tuple[MeasuredRun, ...]:
    """The runs of a shipped table, or of a user's CSV file."""
    if name.endswith(".csv"):
        return user_runs(Path(name))
    if name not in TIME_TABLES:
        raise SpecError(f"no table {name!r}", place="TABLE", fix=nearest(name, list(TIME_TABLES)))
    return TIME_TABLES[name]()
