"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from ratrain.cli.main import VERBS, main

EXAMPLES = Path(__file__).parents[1] / "examples"
JOBS = sorted(EXAMPLES.glob("*.toml"))
SMALL = EXAMPLES / "small.toml"
MAIN_JOB = EXAMPLES / "qwen32b-mt3000.toml"


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str


class Terminal:
    """Runs `ratrain` as its entry point does, in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._patch, self._captured = patch, captured

    def __call__(self, *arguments: str | Path) -> Ran:
        self._patch.setattr(sys, "argv", ["ratrain", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = self._captured.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return Ran(status, shown.out, shown.err)


@pytest.fixture
def ratrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(monkeypatch, capsys)


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The small job with one thing wrong."""
    text = SMALL.read_text()
    assert old in text
    path = tmp_path / "job.toml"
    path.write_text(text.replace(old, new))
    return path


def test_help_lists_the_verbs_without_importing_numpy() -> None:
    code = (
        "import sys; sys.argv = ['ratrain', '--help']\n"
        "from ratrain.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'numpy' not in sys.modules and 'rich' not in sys.modules, 'heavy import'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Train large language models" in done.stdout
    assert all(verb in done.stdout for verb in VERBS)


# ---- what every verb prints --------------------------------------------------------------


COMMANDS = [
    ["models"],
    ["models", "qwen2.5-32b"],
    ["clusters"],
    ["clusters", "mixed-sites"],
    *(["simulate", path] for path in JOBS),
    *(["program", path] for path in JOBS),
    *(["verify", path] for path in JOBS),
    ["simulate", SMALL, "--schedule", "backward-checkpoint"],
    ["simulate", SMALL, "--without", "forward-recovery", "--without", "update-prefetch"],
    ["program", SMALL, "--schedule", "zero3-heavy"],
    ["program", SMALL, "--schedule", "zb-h1"],
]


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(Path(w).name for w in c))
def test_every_line_fits_eighty_columns_and_json_parses(
    ratrain: Terminal, command: list[str | Path]
) -> None:
    plain = ratrain(*command)
    assert plain.status == 0, plain.err
    assert plain.err == ""
    longest = max(plain.out.splitlines(), key=len)
    assert len(longest) <= 80, longest
    machine = ratrain(*command, "--json")
    assert machine.status == 0
    assert json.loads(machine.out)


@pytest.mark.slow
def test_the_whole_reproduction_fits_eighty_columns(ratrain: Terminal) -> None:
    ran = ratrain("reproduce")
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    rows = json.loads(ratrain("reproduce", "ablation", "--json").out)
    assert rows


def test_simulate_json_has_what_scripts_rely_on(ratrain: Terminal) -> None:
    body = json.loads(ratrain("simulate", SMALL, "--json").out)
    assert body.keys() >= {
        "step_time_s",
        "tokens_per_s",
        "bound",
        "peak_bytes",
        "feasible",
        "bubble_fraction",
        "exposed_s",
        "tail_s",
        "ranks",
        "ops_simulated",
        "wall_time_s",
    }
    assert body["feasible"] is True
    assert isinstance(body["peak_bytes"], dict)
    assert isinstance(body["exposed_s"], dict)
    assert len(body["ranks"]) == 4
    assert all(rank.keys() >= {"compute_s", "bubble_s", "peak_bytes"} for rank in body["ranks"])
    assert body["tokens_per_s"] == pytest.approx(8 * 512 / body["step_time_s"])
    assert body["bound"]["busiest_time_s"] <= body["bound"]["step_time_s"] <= body["step_time_s"]


def test_a_trace_is_written_and_a_second_run_gives_the_same_numbers(
    ratrain: Terminal, tmp_path: Path
) -> None:
    trace = tmp_path / "small.trace.json"
    first = json.loads(ratrain("simulate", SMALL, "--trace", trace, "--json").out)
    assert json.loads(trace.read_text())["traceEvents"]
    other = json.loads(ratrain("simulate", SMALL, "--json").out)
    for body in (first, other):
        del body["wall_time_s"]
        body.pop("trace", None)
    assert first == other


def test_a_program_written_as_text_verifies_from_its_file(
    ratrain: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "small.program"
    assert ratrain("program", SMALL, "--form", "text", "-o", path).status == 0
    ran = ratrain("verify", path)
    assert ran.status == 0
    assert "sound" in ran.out


def test_a_schedule_is_checked_as_written_and_its_repair_verifies(
    ratrain: Terminal, tmp_path: Path
) -> None:
    path, mended, only = (tmp_path / f"{name}.csv" for name in ("schedule", "mended", "only"))
    assert ratrain("program", SMALL, "--form", "csv-comms", "-o", path).status == 0
    ran = ratrain("verify", path)
    assert ran.status == 0
    assert "messages: as written" in ran.out and "sound however" in ran.out
    path.write_text(path.read_text().replace(",0SEND_F1", ""))
    ran = ratrain("verify", path, "--messages", "free", "--repair", mended)
    assert ran.status == 4
    assert "MissingSend: 1RECV_F1 (row 2" in ran.out
    assert "1 action added" in ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    assert ratrain("verify", mended, "--messages", "one").status == 0
    assert ratrain("program", SMALL, "--form", "csv", "-o", only).status == 0
    ran = ratrain("verify", only, "--repair", mended)
    assert "messages: derived" in ran.out and "0 B" not in ran.out
    assert ratrain("verify", mended).status == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("only.csv", "--messages", "pair"), "has no messages"),
        (("only.csv", "--times", "F=0"), "'F=0' gives no time"),
        (("small.program", "--repair", "out.csv"), "is no PyTorch schedule"),
    ],
)
def test_options_of_schedules_are_refused_where_there_is_nothing_to_check(
    words: tuple[str, ...],
    what: str,
    ratrain: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("only.csv").write_text("0F0,0B0\n")
    Path("small.program").write_text("")
    ran = ratrain("verify", *words)
    assert ran.status == 2
    assert what in ran.err


@pytest.mark.slow
def test_a_job_over_its_budget_simulates_but_says_so_and_verify_exits_with_3(
    ratrain: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(MAIN_JOB.read_text().replace('"ratrain"', '"full-save"'))
    ran = ratrain("verify", path)
    assert ran.status == 3
    assert "OverBudget" in ran.out
    assert "saved" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    plain = ratrain("simulate", path)
    assert plain.status == 3
    assert "DOES NOT FIT" in plain.out
    assert "OverBudget" in plain.err
    assert max(map(len, (plain.out + plain.err).splitlines())) <= 80
    machine = ratrain("simulate", path, "--json")
    assert machine.status == 3
    body = json.loads(machine.out)
    assert body["feasible"] is False
    assert body["findings"]


@pytest.mark.slow
def test_a_report_of_a_job_over_its_budget_says_so_where_errors_are_told(
    ratrain: Terminal, tmp_path: Path
) -> None:
    path, page = tmp_path / "job.toml", tmp_path / "page.html"
    path.write_text(MAIN_JOB.read_text().replace('"ratrain"', '"full-save"'))
    ran = ratrain("report", path, "-o", page)
    assert ran.status == 3
    assert "OverBudget" in ran.err
    assert max(map(len, ran.err.splitlines())) <= 80
    assert page.exists()


@pytest.mark.slow
def test_a_program_too_long_to_draw_says_how_long_and_what_shows_it(
    ratrain: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(MAIN_JOB.read_text().replace("sequences = 4096", "sequences = 1000000000"))
    ran = ratrain("program", path)
    assert ran.status == 4
    assert "at most 10,000,000" in ran.err
    assert "--form text" in ran.err
    assert "repeats" in ratrain("program", path, "--form", "text").out


# ---- what goes wrong --------------------------------------------------------------------


def refused(ran: Ran, status: int, *messages: str) -> None:
    """One message, the documented status, nothing on stdout, no traceback."""
    assert ran.status == status, ran
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert ran.err.lower().count("error:") == 1
    for words in messages:
        assert words in ran.err


def test_an_unknown_verb_is_named(ratrain: Terminal) -> None:
    ran = ratrain("simulat")
    assert ran.status == 2
    assert "simulat" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments", [["simulate"], ["simulate", SMALL, "--steps", "0"], ["simulate", SMALL, "--step"]]
)
def test_wrong_usage_is_one_message_and_json_for_scripts(
    ratrain: Terminal, arguments: list[str | Path]
) -> None:
    refused(ratrain(*arguments), 2, "ratrain simulate", "fix: ")
    body = json.loads(ratrain(*arguments, "--json").out)
    assert body.keys() == {"schema", "error", "what", "place", "fix", "more"}


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_any_number_of_steps_is_simulated(ratrain: Terminal, steps: int) -> None:
    body = json.loads(ratrain("simulate", SMALL, "--steps", str(steps), "--json").out)
    assert body["steps_simulated"] == steps
    assert body["steady"] is (steps > 2)


@pytest.mark.parametrize("verb", ["program", "verify", "simulate"])
def test_a_missing_file_is_named(ratrain: Terminal, tmp_path: Path, verb: str) -> None:
    refused(ratrain(verb, tmp_path / "no.toml"), 2, "no.toml", "No such file")


@pytest.mark.parametrize("words", [("verify", "-"), ("program", SMALL, "-o", "-")])
def test_a_dash_is_no_file_and_leaves_none(
    ratrain: Terminal,
    tmp_path: Path,
    words: tuple[str | Path, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(ratrain(*words), 2, "- is not a file name", "/dev/stdout")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("verb", ["program", "verify", "simulate"])
def test_a_directory_in_place_of_a_file_is_named(
    ratrain: Terminal, tmp_path: Path, verb: str
) -> None:
    refused(ratrain(verb, tmp_path), 2, str(tmp_path), "directory")


@pytest.mark.parametrize("verb", ["program", "verify", "simulate"])
@pytest.mark.parametrize("name", ["job.toml", "job.program"])
def test_a_file_that_is_not_utf_8_is_named(
    ratrain: Terminal, tmp_path: Path, verb: str, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\x00binary")
    refused(ratrain(verb, path), 2, str(path), "UTF-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("devices = 4", "devcies = 4", "devices"),
        ("devices = 4", "devices = -4", "devices"),
        ("devices = 4", "devices = 3", "devices"),
        ("devices = 4", 'devices = "4GB"', "devices"),
        ("small-llama", "small-lama", "small-llama"),
        ("cpu-lab", "cpu-labs", "cpu-lab"),
        ('name = "ratrain"', 'name = "ratrian"', "ratrain"),
        ('dtype = "fp32"', 'dtype = "fp31"', "fp32"),
        ("[layout]", "[layuot]", "layout"),
        ("[layout]", "[layout", "TOML"),
        ("pipeline = 4", "pipeline = 4\nlayers = [1, 2, 3]", "layers"),
        ('dtype = "fp32"', 'dtype = "fp32"\nmemory_budget = "20 apples"', "memory_budget"),
        ('dtype = "fp32"', 'dtype = "fp32"\nwithout = ["prefetch"]', "update-prefetch"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_wrong_key_or_value_is_named_with_the_nearest_right_one(
    ratrain: Terminal, tmp_path: Path, old: str, new: str, message: str, as_json: bool
) -> None:
    path = changed(tmp_path, old, new)
    ran = ratrain("simulate", path, *(["--json"] if as_json else []))
    if as_json:
        body = json.loads(ran.out)
        assert body.keys() == {"schema", "error", "what", "place", "fix", "more"}
        ran = Ran(ran.status, "", ran.err)
    refused(ran, 2, message)


@pytest.mark.parametrize("verb", ["program", "simulate"])
def test_an_unknown_strategy_or_pass_on_the_command_line_is_named(
    ratrain: Terminal, verb: str
) -> None:
    refused(ratrain(verb, SMALL, "--schedule", "ratrian"), 2, "ratrian", "ratrain")
    refused(ratrain(verb, SMALL, "--without", "prefetch"), 2, "prefetch", "update-prefetch")


@pytest.mark.parametrize(
    ("verb", "name", "nearest"),
    [("models", "lama-2-7b", "llama-2-7b"), ("clusters", "mt300", "mt3000")],
)
def test_an_unknown_preset_names_the_nearest(
    ratrain: Terminal, verb: str, name: str, nearest: str
) -> None:
    refused(ratrain(verb, name), 2, f'"{name}"', nearest)


@pytest.mark.parametrize(("verb", "name"), [("models", "no.json"), ("clusters", "no.toml")])
def test_a_missing_description_is_named(ratrain: Terminal, verb: str, name: str) -> None:
    refused(ratrain(verb, name), 2, name, "No such file")


def test_an_unknown_section_of_the_reproduction_names_the_known_ones(ratrain: Terminal) -> None:
    refused(ratrain("reproduce", "mian"), 2, "mian", "main")


def test_a_damaged_program_text_is_named_by_its_line(ratrain: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "small.program"
    ratrain("program", SMALL, "--form", "text", "-o", path)
    whole = path.read_text()
    for damaged in ("", "hello\n", whole[: len(whole) // 2], whole.replace("F0", "Q0", 1)):
        path.write_text(damaged)
        ran = ratrain("verify", path)
        assert ran.status in (2, 4), damaged[:40]
        assert "Traceback" not in ran.err


def test_a_program_without_a_send_is_refused_with_the_rule_and_the_cell(
    ratrain: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "small.program"
    ratrain("program", SMALL, "--form", "text", "-o", path)
    text = path.read_text()
    assert "0SEND_F0 " in text
    path.write_text(text.replace("0SEND_F0 ", "", 1))
    ran = ratrain("verify", path)
    assert ran.status == 4
    assert "MissingSend" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize(("verb", "option"), [("simulate", "--trace"), ("program", "-o")])
def test_an_output_that_cannot_be_written_is_named(
    ratrain: Terminal, tmp_path: Path, verb: str, option: str
) -> None:
    for target in (tmp_path / "no folder" / "out", tmp_path):
        refused(ratrain(verb, SMALL, option, target), 2, str(target), "cannot be written")


def test_a_reader_that_has_gone_gets_no_traceback() -> None:
    code = "import sys; sys.argv = ['ratrain', 'models']\n"
    code += "from ratrain.cli.main import main\nmain()\n"
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writes, stderr=subprocess.PIPE, check=False
    )
    os.close(writes)
    assert done.returncode == 1
    assert done.stderr == b""
