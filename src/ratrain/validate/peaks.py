"""The project's tables of memory as measured peaks: what their columns leave unsaid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ratrain.validate.frameworks import MEGATRON, SAILOR
from ratrain.validate.memory import ACTIVATIONS, STATES, MeasuredPeak, predicted_peak
from ratrain.validate.rows import Cells, Run, run_of, shipped_cells
from ratrain.validate.tables import sailor_cells

GIB = 2**30
KEPT = {
    "act_none": {"recompute": "none"},
    "act_selective_sp": {"recompute": "selective", "sequence_parallel": "yes"},
}


def korthikanti() -> Iterator[MeasuredPeak]:
    """Figure 1 of arXiv 2205.05198: the first stage; 175B on p = 8, three stages a rank. The
    figure is that paper's own formula, of the layers alone: no embedding, no head."""
    for row in shipped_cells("korthikanti_memory_gib"):
        alone = row["model"] == "22B"
        cells = {
            "model": f"gpt-{row['model'].lower()}",
            "tp": "8",
            "pp": "1" if alone else "8",
            "vstage_layers": "" if alone else "4",
            "mbs": "4" if alone else "1",
            "gbs": "4" if alone else "64",
            "dp": "1",
        }
        published = {"param_opt": STATES, **dict.fromkeys(KEPT, ACTIVATIONS)}
        for column, families in published.items():
            run = run_of({**cells, **KEPT.get(column, KEPT["act_none"])})
            label = "states" if families == STATES else column.replace("_", " ")
            size_bytes = float(row[column]) * GIB
            yield MeasuredPeak(
                f"{row['model']} {label}", (run,), MEGATRON, True, size_bytes, 0, families
            )


def zero_bubble() -> Iterator[MeasuredPeak]:
    """Peaks of arXiv 2401.10241, table 4, in whole GB, for the two schedules that are ours too.
    They do not depend on the number of micro-batches: one row a model. With several stages per rank
    the embedding and the head are stages of their own."""
    for row in shipped_cells("zero_bubble_pipeline"):
        ranks, layers = int(row["p_gpus"]), int(row["layers"])
        if row["m"] != str(3 * ranks):
            continue
        stage_layers = (layers + 2) // ranks
        plain = [stage_layers - 1, *[stage_layers] * (ranks - 2), stage_layers - 1]
        chunked = [0, *[1] * layers, 0]
        for column, stages in (("mem_1f1b", plain), ("mem_1f1b_i", chunked)):
            run = run_of(
                {
                    "model": f"gpt-zb-{row['model'].lower()}",
                    "sequence": "1024",
                    "pp": str(ranks),
                    "dp": "1",
                    "mbs": row["mbs"],
                    "gbs": str(int(row["mbs"]) * int(row["m"])),
                    "stage_layers": "-".join(map(str, stages)),
                    "recompute": "none",
                }
            )
            name = "1F1B" if column == "mem_1f1b" else "interleaved 1F1B"
            peak_bytes = float(row[column]) * 1e9
            yield MeasuredPeak(f"{row['model']} {name}", (run,), MEGATRON, True, peak_bytes)


def megatron_15b() -> Iterator[MeasuredPeak]:
    """Allocator peaks of Megatron-LM's golden 15B runs. The number of devices is not stated: every
    data degree counts that divides a step's micro-batches and whose states alone are no more than
    what the allocator holds between steps."""
    for row in shipped_cells("megatron_peak_memory"):
        micro_batches = int(row["gbs"]) // int(row["mbs"])
        between_bytes = float(row["alloc_GB"]) * 1e9
        runs = tuple(
            run
            for data in range(1, micro_batches + 1)
            if micro_batches % data == 0
            for run in [_run_15b(row, data)]
            if _states_bytes(run) <= between_bytes
        )
        peak_bytes = float(row["peak_GB"]) * 1e9
        yield MeasuredPeak(f"15B {row['gpu']}", runs, MEGATRON, False, peak_bytes)


def _run_15b(row: Cells, data: int) -> Run:
    """With the distributed optimizer and the fused attention of Transformer Engine. The machine
    decides nothing here but that no scores are stored."""
    return run_of(
        {
            "model": "megatron-15b",
            "sequence": "4096",
            "tp": row["tp"],
            "dp": str(data),
            "mbs": row["mbs"],
            "gbs": row["gbs"],
            "recompute": "none",
            "sequence_parallel": "yes",
            "sharding": "1",
            "dtype": "bf16",
            "cluster": "h100-dgx",
        }
    )


def _states_bytes(run: Run) -> float:
    """Weights, gradients and optimizer: the same for any number of micro-batches."""
    run = replace(run, sequences=run.data * run.micro_batch)
    peak = MeasuredPeak("states", (run,), MEGATRON, False, 1, families=STATES)
    return predicted_peak(peak, run).proof_bytes


def sailor() -> Iterator[MeasuredPeak]:
    """Peaks of Sailor's homogeneous runs on GH200, as nvidia-smi showed them."""
    for row in shipped_cells("sailor_gh200"):
        run = run_of(sailor_cells(row))
        peak_bytes = float(row["peak_GiB"]) * GIB
        yield MeasuredPeak(run.label, (run,), SAILOR, False, peak_bytes, held_out=True)


PEAK_TABLES: dict[str, tuple[str, Callable[[], Iterator[MeasuredPeak]]]] = {
    "korthikanti_memory_gib": ("GiB", korthikanti),
    "zero_bubble_memory": ("GB", zero_bubble),
    "megatron_peak_memory": ("GB", megatron_15b),
    "sailor_gh200_memory": ("GiB", sailor),
}
"""Tables of memory: the unit that they are shown in, and their rows."""
