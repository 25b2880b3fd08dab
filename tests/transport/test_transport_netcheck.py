"""`ratrain net check` with real agent processes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from click.testing import CliRunner

from ratrain.cli.net import command
from ratrain.transport import Config, Engine


def test_net_check_measures_and_verifies_every_pair_of_local_agents() -> None:
    result = CliRunner().invoke(command, ["check", "--local", "2", "--mib", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert [(r["from"], r["to"]) for r in report["links"]] == [("p0", "p1"), ("p1", "p0")]
    for row in report["links"]:
        assert row["verified"]
        assert 0 < row["latency_s"] < 0.1
        assert row["rate_bytes_per_s"] > 1e6


def test_net_check_shows_a_dead_agent_as_an_error_and_ends(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(16))
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        with Engine(Config(key.read_bytes(), file.stem, providers=("sock",))) as engine:
            file.write_bytes(engine.address.to_bytes())
    options = ["check", "--secret-file", str(key), *map(str, files), "--timeout", "0.5"]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 5
    assert "failed" in result.output
