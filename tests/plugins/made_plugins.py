"""Packages with plugins, made and installed for a test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"


def install_from_page(folder: Path) -> Path:
    """Builds the package of docs/how-to/plugins.md and installs it with pip; the folder that a path
    must have to find it."""
    source, site = folder / "ratrain-eager", folder / "site"
    shutil.copytree(EXAMPLE, source)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    done = subprocess.run(
        [*pip, "--quiet", "--target", site, source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return site


def write_plugin(folder: Path, package: str, code: str, entry: str = "") -> Path:
    """A package of one module, put on a path as pip would leave it."""
    module = package.replace("-", "_")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.1\n")
    (info / "entry_points.txt").write_text(f"[ratrain.plugins]\nmine = {entry or module}\n")
    return folder


def path_with(site: Path) -> dict[str, str]:
    """The environment of a process that finds what is installed there."""
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{site}:{before}" if before else str(site)}
