"""`ratrain noc` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from ratrain.chip.noc.picture import curve_svg
from ratrain.cli.chips.noc import command


def noc(*words: str) -> str:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def noc_json(*words: str) -> Any:
    return json.loads(noc(*words, "--json"))


def fits(text: str) -> bool:
    return all(len(line) <= 80 for line in text.splitlines())


def test_sweep_prints_a_curve_and_draws_it(tmp_path: Path) -> None:
    curve, heat = tmp_path / "curve.svg", tmp_path / "heat.svg"
    words = ("sweep", "--mesh", "4x4", "--loads", "0.1,0.3", "--window", "1000")
    text = noc(*words, "--svg", str(curve), "--heat", str(heat))
    assert "saturation" in text and fits(text)
    for picture in (curve, heat):
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    data = noc_json(*words)
    assert [p["offered"] for p in data["points"]] == [0.1, 0.3]
    assert 0.5 < data["saturation"] < 0.7


def test_a_curve_shows_every_latency_at_its_own_height_with_its_number() -> None:
    line = [(0.1, 13.0), (0.3, 17.6), (0.35, 600.9), (0.4, 1739.2), (0.5, float("nan"))]
    root = ElementTree.fromstring(curve_svg({"8x8": line}, "latency"))
    space = "{http://www.w3.org/2000/svg}"
    heights = [float(dot.attrib["cy"]) for dot in root.iter(f"{space}circle")]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 4
    texts = [text.text for text in root.iter(f"{space}text")]
    assert {"13.0", "17.6", "601", "1,739"} <= set(texts)


def test_collective_compares_algorithms_and_shows_the_steps(tmp_path: Path) -> None:
    page = tmp_path / "steps.html"
    text = noc("collective", "reduce", "--shape", "4x1", "--steps", str(page))
    assert "equal to numpy" in text and fits(text)
    html = page.read_text()
    assert "<script>" in html and "http" not in html.replace("http://www.w3.org", "")
    rows = noc_json("collective", "reduce", "--shape", "4x1")["outcomes"]
    assert [r["algorithm"] for r in rows] == ["hw", "seq", "tree"]
    assert rows[0]["combines"] == 3 * 64 and rows[0]["clusters_checked"] == 1


@pytest.mark.parametrize("flow", ["summa", "fcl"])
def test_gemm_shows_the_models_and_a_simulation(flow: str) -> None:
    assert fits(noc("gemm", flow, "--simulate", "4"))
    data = noc_json("gemm", flow, "--basis", "arxiv", "--simulate", "4")
    points = data["models"]["arxiv"]
    assert [p["mesh"] for p in points] == [4, 8, 16, 32, 64, 128, 256]
    saved = max(p["software_pj"] / p["hardware_pj"] for p in points)
    assert round(saved, 3) == {"summa": 1.169, "fcl": 1.088}[flow]
    assert all(run["clusters_checked"] == 16 for run in data["simulated"])


def test_costs_are_a_table_for_planners() -> None:
    assert fits(noc("costs"))
    assert noc_json("costs")["costs"][0]["hop_cycles"] == 4.0


@pytest.mark.slow
def test_reproduce_sets_every_figure_beside_ours() -> None:
    assert fits(noc("reproduce", "--models-only"))
    data = noc_json("reproduce")
    figures = data["figures"]
    assert round(data["router_area"][-1]["overhead"], 3) == 0.169
    assert {f["how"] for f in figures} == {"model", "fitted", "derived", "simulated"}
    assert all(f["matches"] or f["note"] for f in figures)
    slope = next(f for f in figures if f["quantity"].startswith("barrier, hardware"))
    assert 1.2 < slope["ours"] < 1.4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("collective", "reduce", "--shape", "3x1"), "power-of-two"),
        (("collective", "reduce", "--algorithm", "magic"), "hw, seq, tree"),
        (("collective", "reduce", "--size", "lots"), "is not a size"),
        (("collective", "reduce", "--format", "fp128"), "unknown format"),
        (("collective", "reduce", "--no-dca", "--algorithm", "hw"), "Direct Compute Access"),
        (("sweep", "--loads", "2"), "load of 2.0"),
        (("sweep", "--loads", "0.5:0.1:0.1"), "is not a list of loads"),
        (("sweep", "--mesh", "8by8"), "is not a shape"),
    ],
)
def test_mistakes_get_one_message_and_no_traceback(words: tuple[str, ...], message: str) -> None:
    code = "from ratrain.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "noc", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_help_teaches_by_example() -> None:
    for verb in ("sweep", "collective", "gemm", "reproduce", "costs"):
        assert "ratrain noc" in noc(verb, "--help")


def test_without_the_compiled_core_the_simulator_says_so_and_models_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ratrain.chip.noc import binding
    from ratrain.errors import ChipError

    monkeypatch.setattr(binding.compiled, "library", lambda *_: None)
    binding._library.cache_clear()
    try:
        with pytest.raises(ChipError, match="compiled mesh simulator is missing"):
            noc("collective", "barrier")
        assert "SUMMA" in noc("reproduce", "--models-only")
    finally:
        binding._library.cache_clear()
