"""`ratrain net check` with real agent processes."""

from __future__ import annotations

import json
import secrets
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from authority import Authority
from click.testing import CliRunner

from ratrain.cli.measuring.net import command
from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.strict import load
from ratrain.errors import SpecError
from ratrain.readers.toml import read_toml
from ratrain.transport import Config, Engine

PRESETS = resources.files("ratrain.describe.presets") / "clusters"


def test_net_check_measures_and_verifies_every_pair_of_local_agents() -> None:
    result = CliRunner().invoke(command, ["check", "--local", "2", "--mib", "1", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert [(r["from"], r["to"]) for r in report["links"]] == [("p0", "p1"), ("p1", "p0")]
    for row in report["links"]:
        assert row["verified"]
        assert 0 < row["latency_s"] < 0.1
        assert row["rate_bytes_per_s"] > 1e6


@pytest.mark.slow
def test_net_check_measures_under_tls_by_the_secret_alone_or_by_certificates(
    tmp_path: Path,
) -> None:
    signed = Authority(tmp_path).sign("host")
    files = [
        "--certificate",
        signed.certificate,
        "--key",
        signed.key,
        "--authority",
        signed.authority,
    ]
    for options in (["--tls"], [str(f) for f in files]):
        command_line = ["check", "--local", "2", "--mib", "1", "--json", *options]
        result = CliRunner().invoke(command, command_line)
        assert result.exit_code == 0, result.output
        assert [r["verified"] for r in json.loads(result.output)["links"]] == [True, True]
    wrong = ["--certificate", str(signed.certificate), "--key", "no.key", "--authority", "no.pem"]
    result = CliRunner().invoke(command, ["check", "--local", "2", *wrong])
    assert isinstance(result.exception, SpecError)
    assert str(result.exception).startswith("Tls.key: no such file: no.key")


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


@pytest.mark.slow
def test_what_net_check_measured_is_the_links_part_of_a_cluster_file_json_and_text() -> None:
    table, place = read_toml(Path(str(PRESETS / "mixed-sites.toml")))
    for as_json in (True, False):
        options = ["check", "--local", "2", "--mib", "1", "--level", "world"]
        result = CliRunner().invoke(command, [*options, *["--json"] * as_json])
        assert result.exit_code == 0, result.output
        if as_json:
            links = json.loads(result.output)["cluster"]["links"]
        else:
            links = tomllib.loads(result.output.split("# for a cluster file")[1])["links"]
        cluster = load(ClusterSpec, {**table, "links": links}, place)
        devices = cluster.devices(12)
        link = cluster.link(devices[0], devices[-1])
        assert 0 < link.latency_s < 0.1
        assert link.bandwidth_bytes_per_s > 1e6
        assert "ratrain net check" in link.source
        assert "2 directed pairs" in link.source
