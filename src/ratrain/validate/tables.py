"""The project's tables of step times as measured runs: what their columns leave unsaid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.validate.predict import job_of
from ratrain.validate.rows import Cells, MeasuredRun, measured_run, shipped_cells, user_runs

LARGE_PARAMS_B = 100
"""Models of Narayanan et al. above this many billion parameters were held out of the fit."""


def sc21() -> tuple[MeasuredRun, ...]:
    """Narayanan et al. 2021, arXiv 2104.04473, table 1."""
    return tuple(
        measured_run(
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
    runs: list[MeasuredRun] = []
    for row in shipped_cells("korthikanti_iteration"):
        interleaved = row["model"] == "175B"
        cells = {
            **row,
            "model": f"gpt-{row['model'].lower()}",
            "vstage_layers": "4" if interleaved else "",  # x3: 96 layers on 8 x 3 stages
            "held_out": "yes" if interleaved else "no",
        }
        runs.append(measured_run({**cells, "iter_s": row["full_s"]}))
        selective = {"recompute": "selective", "sequence_parallel": "yes"}
        runs.append(measured_run({**cells, "iter_s": row["new_s"], **selective}))
    return tuple(runs)


def vtrain_multi() -> tuple[MeasuredRun, ...]:
    """VIA-Research/vTrain, several hosts: not one row was used to calibrate."""
    return tuple(
        measured_run({**row, "cluster": "a100-deepspeed", "held_out": "yes"})
        for row in shipped_cells("vtrain_multi_node")
    )


def vtrain_single() -> tuple[MeasuredRun, ...]:
    """The same inside a host. Activations are taken to be kept: see docs/notes/accuracy.md."""
    fixed = {
        "layers": "24",
        "hidden": "2048",
        "heads": "16",
        "sequence": "1024",
        "cluster": "a100-deepspeed",
        "recompute": "none",
        "held_out": "no",
    }
    return tuple(measured_run({**row, **fixed}) for row in shipped_cells("vtrain_single_node"))


def amp() -> tuple[MeasuredRun, ...]:
    """AMP (NeurIPS 2022), its homogeneous trials: 16 T4. Every second row, from the first on, was
    used to calibrate."""
    fixed = {
        "model": "gpt2-345m",
        "sequence": "1024",
        "cluster": "t4-deepspeed",
        "recompute": "none",
    }
    return tuple(
        measured_run(
            {
                **row,
                **fixed,
                "stage_layers": amp_layers(row["cut"]),
                "held_out": "yes" if number % 2 else "no",
            }
        )
        for number, row in enumerate(shipped_cells("amp_t4"))
    )


AMP_SLOTS = 30
AMP_LAYERS = range(2, 26)
"""AMP counts 30 slots: 2 before the 24 layers and 4 after them. A cut is the first slot of each
stage but the first."""


def amp_layers(cut: str) -> str:
    """Layers of each stage, from a cut such as "9 15 21"."""
    ends = [*map(int, cut.split()), AMP_SLOTS]
    begins = [0, *ends[:-1]]
    return "-".join(
        str(sum(slot in AMP_LAYERS for slot in range(begin, end)))
        for begin, end in zip(begins, ends, strict=True)
    )


def sailor() -> tuple[MeasuredRun, ...]:
    """Sailor (SOSP 2025), its homogeneous runs on GH200. Not one row was used to calibrate."""
    return tuple(measured_run(sailor_cells(row)) for row in shipped_cells("sailor_gh200"))


def sailor_cells(row: Cells) -> dict[str, str]:
    """A row of that table. Its slots count the embedding and the head as a layer each."""
    layers = [int(slots) for slots in row["slots"].split("-")]
    layers[0], layers[-1] = layers[0] - 1, layers[-1] - 1
    if len(layers) == 1:
        layers = [int(row["slots"]) - 2]
    return {
        **row,
        "stage_layers": "-".join(map(str, layers)),
        "sequence": "2048",
        "cluster": "gh200-deepspeed",
        "recompute": "none",
        "dtype": "fp32",
    }


TIME_TABLES: dict[str, Callable[[], tuple[MeasuredRun, ...]]] = {
    "megatron_sc21_table1": sc21,
    "korthikanti_iteration": korthikanti,
    "vtrain_multi_node": vtrain_multi,
    "vtrain_single_node": vtrain_single,
    "amp_t4": amp,
    "sailor_gh200": sailor,
}


def runs_of(name: str) -> tuple[MeasuredRun, ...]:
    """The runs of a shipped table, or of a user's CSV file."""
    if name.endswith(".csv"):
        return user_runs(Path(name), job_of)
    if name not in TIME_TABLES:
        raise SpecError(
            f"unknown table {name!r}", place="TABLE", fix=nearest(name, list(TIME_TABLES))
        )
    return TIME_TABLES[name]()
