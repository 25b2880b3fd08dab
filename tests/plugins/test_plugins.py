"""Packages of others that bring schedules, passes and clusters: the one of docs/how-to/plugins.md,
built and installed, and broken ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import Ran, ratrain_arguments, write_job
from made_plugins import install_from_page, path_with, write_plugin

SMALL = Path(__file__).parents[2] / "examples" / "small.toml"


def ratrain(site: Path, *arguments: str | Path, folder: Path | None = None) -> Ran:
    environment = path_with(site)
    if folder is not None:
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
    done = subprocess.run(
        ratrain_arguments(*arguments),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_from_page(tmp_path_factory.mktemp("eager"))


@pytest.mark.slow
def test_an_installed_packages_names_work_in_every_verb(installed: Path, tmp_path: Path) -> None:
    listed = ratrain(installed, "schedules", SMALL)
    assert listed.status == 0, listed.err
    assert "\n eager " in listed.out and "eager-1f1b" in listed.out
    simulated = ratrain(installed, "simulate", SMALL, "--schedule", "eager", "--json")
    assert simulated.status == 0, simulated.err
    assert simulated.body["passes"][-2:] == ["update-in-forward-order", "save-states"]
    assert "attic" in ratrain(installed, "clusters").out
    assert "four old desktops" in ratrain(installed, "clusters", "attic").out
    job = tmp_path / "job.toml"
    job.write_text(SMALL.read_text().replace('name = "ratrain"', 'name = "eager"'))
    job.write_text(job.read_text().replace("cpu-lab", "attic"))
    planned = ratrain(installed, "plan", job, "-o", tmp_path / "plan.json")
    assert planned.status == 0, planned.err
    assert json.loads((tmp_path / "plan.json").read_text())["skeleton"] == "eager-1f1b"
    assert ratrain(installed, "verify", tmp_path / "plan.json").status == 0
    without = ratrain(installed, "simulate", job, "--without", "update-in-forward-order", "--json")
    assert "update-in-forward-order" not in without.body["passes"]


@pytest.mark.slow
def test_ranks_train_with_a_plugins_schedule_on_its_cluster(
    installed: Path, tmp_path: Path
) -> None:
    path = write_job(tmp_path, steps=4)
    text = path.read_text().replace("cpu-lab", "attic")
    path.write_text(text.replace('dtype = "fp32"', 'name = "eager"\ndtype = "fp32"'))
    trained = ratrain(installed, "train", path, "--run", "run", "--json", folder=tmp_path)
    assert trained.status == 0, trained.err
    assert trained.body["facts"]["schedule"] == "eager"
    assert "passes eager-1f1b" in (tmp_path / "run" / "program.txt").read_text()
    plain = ["--run", "plain", "--schedule", "baseline-1f1b", "--no-calibrate", "--json"]
    other = ratrain(installed, "train", path, *plain, folder=tmp_path)
    assert other.body["loss"] == trained.body["loss"]  # another order, the very same numbers
    missing = ratrain(tmp_path, "timeline", "run", folder=tmp_path)
    assert missing.status == 0, missing.err  # a run is read without the package


TELLING = """from dataclasses import replace
from ratrain.describe.backends import BACKENDS, declare_backend
declare_backend(replace(BACKENDS["torch"], name="telling", ops="telling_ops:Telling"))
"""
TELLING_OPS = """from ratrain.runtime.step.ops import RankOps
class Telling(RankOps):
    def update_shard(self, op, step):
        super().update_shard(op, step)
        print("done:", op.word, flush=True)
"""


@pytest.mark.slow
def test_ranks_execute_a_plugins_backend_with_the_class_that_it_names(tmp_path: Path) -> None:
    site = write_plugin(tmp_path / "site", "ratrain-telling", TELLING)
    (site / "telling_ops.py").write_text(TELLING_OPS)
    path = write_job(tmp_path, steps=2)
    text = path.read_text().replace('dtype = "fp32"', 'backend = "telling"\ndtype = "fp32"')
    path.write_text(text)
    trained = ratrain(site, "train", path, "--run", "run", "--no-calibrate", folder=tmp_path)
    assert trained.status == 0, trained.err
    logs = [log.read_text() for log in (tmp_path / "run").rglob("*.log")]
    assert logs and all("done: " in log for log in logs)


def test_an_uninstalled_schedule_is_an_unknown_name(tmp_path: Path) -> None:
    ran = ratrain(tmp_path, "simulate", SMALL, "--schedule", "eager")
    assert ran.status == 2 and "unknown strategy 'eager'" in ran.err


BROKEN = {
    "import json\nimport no_such_library\n": "No module named 'no_such_library'",
    "1 / 0\n": "ZeroDivisionError",
    "raise SystemExit(0)\n": "SystemExit",
    "from ratrain.program.skeletons import *\n"
    "declare_skeleton('gpipe', Skeleton(gpipe))\n": "the skeleton gpipe is declared twice",
    "from ratrain.program.strategies import *\n"
    "declare_strategy('x', replace(STRATEGIES['ratrain'], skeleton='y'))": "not declared",
    "from ratrain.describe.presets import declare_cluster\n"
    "declare_cluster(__file__.replace('mine.py', 'none.toml'))": "none.toml: cannot be read",
}


@pytest.mark.parametrize("code", BROKEN, ids=BROKEN.values())
def test_a_plugin_that_cannot_be_loaded_is_one_error_that_names_its_package(
    tmp_path: Path, code: str
) -> None:
    site = write_plugin(tmp_path / "site", "ratrain-mine", code)
    ran = ratrain(site, "clusters")
    assert ran.status == 2 and ran.out == "" and "Traceback" not in ran.err
    assert "package ratrain-mine 2.1: the plugin 'mine'" in ran.err.replace("\n", " ")
    assert BROKEN[code] in ran.err.replace("\n", " ")


@pytest.mark.slow
def test_a_broken_plugin_stops_nobody_who_does_not_name_it(tmp_path: Path) -> None:
    site = write_plugin(tmp_path / "site", "ratrain-mine", "1 / 0\n")
    assert ratrain(site, "verify", SMALL).status == 0
    asked = ratrain(site, "verify", SMALL, "--json")
    assert asked.body["sound"]


def test_a_function_is_called_once_and_others_are_loaded_beside_a_broken_plugin(
    tmp_path: Path,
) -> None:
    site = write_plugin(
        tmp_path / "site",
        "ratrain-good",
        "from ratrain.program.passes.clipping import clip_global_norm\n"
        "def declare():\n"
        "    from ratrain.program.strategies import declare_pass\n"
        "    declare_pass('mine', clip_global_norm)\n"
        "    print('declared')\n",
        entry="ratrain_good:declare",
    )
    write_plugin(site, "ratrain-absent", "", entry="ratrain_absent:declare")
    code = (
        "from ratrain.errors import PluginError\n"
        "from ratrain.program.strategies import FURTHER_PASSES, known_passes\n"
        "for _ in range(2):\n"
        "    try:\n        known_passes()\n"
        "    except PluginError as error:\n        print(error.place)\n"
        "print('mine' in FURTHER_PASSES)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=path_with(site),
        capture_output=True,
        text=True,
        check=False,
    )
    absent = "package ratrain-absent 2.1"
    assert done.stdout.splitlines() == ["declared", absent, absent, "True"], done.stderr
