"""Where a run's time went."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.runtime.host import process_began_s
from ratrain.runtime.run.reports.goodput import PARTS, goodput_json, goodput_of

seconds = st.floats(0, 50)


@given(st.data())
def test_parts_add_up_to_all_time_since_the_first_start(data: st.DataObject) -> None:
    rows: list[dict[str, Any]] = []
    now_s, step, steps_s, lost = 1e6, 0, dict[int, float](), 0.0
    for _ in range(data.draw(st.integers(1, 5))):
        step = data.draw(st.integers(0, step))  # from an earlier checkpoint, or where it was
        now_s += data.draw(seconds)
        started_s = now_s
        now_s += data.draw(seconds)
        for number in range(data.draw(st.integers(1, 6))):
            now_s += data.draw(seconds)
            took_s = data.draw(seconds)
            now_s += took_s
            rows.append({"step": step, "loss": 1.0, "step_time_s": took_s, "time_s": now_s})
            if not number:
                rows[-1]["started_s"] = started_s
            elif data.draw(st.booleans()):
                rows.append({"step": step, "validation_loss": 1.0, "time_s": now_s + 1})
            lost += steps_s.get(step, 0.0)
            steps_s[step] = took_s
            step += 1
    found = goodput_of(rows)
    assert found is not None
    assert found.total_s == pytest.approx(now_s - rows[0]["started_s"], abs=1e-3)
    assert found.steps_s == pytest.approx(sum(steps_s.values()), abs=1e-3)
    assert found.lost_steps_s == pytest.approx(lost, abs=1e-3)
    assert found.starts == sum("started_s" in row for row in rows)


def test_a_run_that_did_not_note_its_starts_has_no_goodput() -> None:
    assert goodput_of([]) is None
    assert goodput_of([{"step": 0, "loss": 1.0, "step_time_s": 1.0, "time_s": 9.0}]) is None


def test_every_part_has_words_for_people() -> None:
    row = {"step": 0, "loss": 1.0, "step_time_s": 1.0, "time_s": 9.0, "started_s": 4.0}
    body = goodput_json(goodput_of([row]))
    assert body is not None
    assert {"steps_s", "starts", "total_s", "fraction", *PARTS} == set(body)
    assert body["fraction"] == pytest.approx(0.2)


def test_a_process_knows_when_it_began() -> None:
    before_s = time.time()
    code = "import time; time.sleep(0.5); from ratrain.runtime.host import process_began_s as b;"
    code += "print(b())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before_s - 0.1 <= float(done.stdout) <= before_s + 0.4
    assert process_began_s() <= time.time() and os.getpid()
