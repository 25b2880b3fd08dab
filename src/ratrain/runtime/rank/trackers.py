"""A run's figures for TensorBoard, and for Weights & Biases and MLflow where these are installed
and asked for.

Written by whoever follows the run: the launcher, or rank 0 where torchrun or another launcher
started it.
"""

from __future__ import annotations

import os
import socket
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ratrain.errors import SpecError
from ratrain.readers.files import unwritable
from ratrain.runtime.environment import FOLLOWED
from ratrain.runtime.rank.rows import Row, Tracker, exposed_fraction, is_added, is_validation

_STRING = 7  # of TensorFlow's types
WANDB_PROJECT = "WANDB_PROJECT"
"""The environment variable that asks for Weights & Biases, as its own tools read it."""
MLFLOW_URI = "MLFLOW_TRACKING_URI"
"""The one that asks for MLflow. Its tools read MLFLOW_EXPERIMENT_NAME too, and credentials."""


def trackers(folder: Path) -> list[Tracker]:
    """TensorBoard's where it is installed; Weights & Biases' where it is and has a project;
    MLflow's where it is and has a place to track to."""
    chosen: list[Tracker] = []
    if find_spec("tensorboard"):
        chosen.append(TensorBoard(folder / "tensorboard"))
    if wandb_project():
        chosen.append(WeightsAndBiases(folder))
    if mlflow_uri():
        chosen.append(MLflow(folder))
    return chosen


def own_trackers(folder: Path) -> list[Tracker]:
    """The trackers of rank 0, which needs none where its launcher has them."""
    return [] if os.environ.get(FOLLOWED) else trackers(folder)


def wandb_project() -> str:
    """The project that runs are logged to; "" where none is named or wandb is not installed."""
    return os.environ.get(WANDB_PROJECT, "") if find_spec("wandb") else ""


def mlflow_uri() -> str:
    """Where MLflow tracks to; "" where that is not said or mlflow is not installed."""
    return os.environ.get(MLFLOW_URI, "") if find_spec("mlflow") else ""


def scalars(row: Row) -> dict[str, float]:
    """The figures of a step or of its validation, by the name that a chart has."""
    if is_validation(row):
        return {"validation_loss": row["validation_loss"]}
    if is_added(row):
        return {"samples_s": row["samples_s"]}
    figures: dict[str, float] = {
        "loss": row["loss"],
        "learning_rate": row["learning_rate"],
        "tokens_per_s": row["tokens_per_s"],
        "step_time_s": row["step_time_s"],
        "exposed_fraction": max(map(exposed_fraction, row["ranks"])),
    }
    if "gradient_norm_before" in row:
        figures["gradient_norm_before"] = row["gradient_norm_before"]
    for number, rank in enumerate(row["ranks"]):
        for name in ("ledger_peak_bytes", "allocated_peak_bytes"):
            if rank[name]:
                figures[f"{name}/rank_{number}"] = rank[name]
        if "expert_tokens" in rank:
            over_even = rank["expert_tokens_longest"] / rank["expert_tokens_even"]
            figures[f"expert_longest_over_even/rank_{number}"] = over_even
            figures[f"expert_busiest_over_mean/rank_{number}"] = rank["expert_busiest"]
    return figures


def texts(row: Row) -> list[str]:
    """The samples of a row, each as Markdown: what the model went on with in bold."""
    return [f"**{each['prompt']}**{each['text']}" for each in row.get("samples", ())]


class TensorBoard:
    """An events file, in TensorBoard's own records, which need no torch. Its own writer opens the
    file by name for each write, in a thread that fails by itself when the folder is gone; this one
    keeps it open."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        records = import_module("tensorboard.summary.writer.record_writer")
        self._path = folder / name
        self._records: Any = records.RecordWriter(self._path.open("xb"))
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
        tensors: Any = import_module("tensorboard.compat.proto.tensor_pb2")
        self._tensor: Any = tensors.TensorProto
        self._add(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, row: Row) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in scalars(row).items()
        ]
        for number, text in enumerate(texts(row)):
            tensor = self._tensor(dtype=_STRING, string_val=[text.encode()])
            values.append(self._summary.Value(tag=f"sample/{number}", tensor=tensor))
            values[-1].metadata.plugin_data.plugin_name = "text"
        summary = self._summary(value=values)
        self._add(self._event(step=row["step"] + 1, wall_time=row["time_s"], summary=summary))

    def close(self) -> None:
        self._records.close()

    def _add(self, event: Any) -> None:
        """Written at once: a run that is killed has all of its curve."""
        try:
            self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            raise unwritable(self._path, error) from error


class WeightsAndBiases:
    """A run of Weights & Biases, with the run folder's name."""

    def __init__(self, folder: Path) -> None:
        wandb: Any = import_module("wandb")
        self._run: Any = wandb.init(
            project=wandb_project(), name=folder.name, dir=str(folder), resume="allow"
        )

    def write(self, row: Row) -> None:
        more = {f"sample/{number}": text for number, text in enumerate(texts(row))}
        self._run.log({**scalars(row), **more}, step=row["step"] + 1)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, with the run folder's name. One that goes on goes on there, too: it is found
    by the folder's path."""

    def __init__(self, folder: Path) -> None:
        mlflow: Any = import_module("mlflow")
        mark, place = "ratrain.folder", str(folder.resolve())
        try:
            experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default"))
            self._client: Any = mlflow.MlflowClient()
            known = self._client.search_runs(
                [experiment.experiment_id], f"tags.`{mark}` = '{place}'", max_results=1
            )
            run = (
                known[0]
                if known
                else self._client.create_run(
                    experiment.experiment_id, run_name=folder.name, tags={mark: place}
                )
            )
            self._id: str = run.info.run_id
            self._client.update_run(self._id, status="RUNNING")
        except Exception as error:  # its own, of its storage, or of the way there
            raise SpecError(
                f"MLflow cannot be written to: {str(error).splitlines()[0]}",
                place=f"{MLFLOW_URI} {os.environ[MLFLOW_URI]}",
                fix=f"start its server, or unset {MLFLOW_URI}",
            ) from error
        self._metric: Any = import_module("mlflow.entities").Metric

    def write(self, row: Row) -> None:
        """Sent in the background: a server that has gone away stops no step."""
        at = int(row["time_s"] * 1000)
        values = [
            self._metric(name, value, at, row["step"] + 1) for name, value in scalars(row).items()
        ]
        self._client.log_batch(self._id, metrics=values, synchronous=False)
        if samples := texts(row):
            self._client.log_text(self._id, "\n\n".join(samples), f"samples/{row['step'] + 1}.md")

    def close(self) -> None:
        import_module("mlflow").flush_async_logging()
        self._client.set_terminated(self._id)
