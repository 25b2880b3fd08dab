"""`ratrain models` and `ratrain clusters` as a user meets them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ratrain.cli.main import ratrain


@pytest.mark.parametrize(
    "arguments",
    [["models"], ["models", "llama-2-7b"], ["clusters"]]
    + [["clusters", name] for name in ("mt3000", "mixed-sites", "a100-80g-dgx")],
)
def test_output_fits_eighty_columns_and_json_parses(arguments: list[str]) -> None:
    plain = CliRunner().invoke(ratrain, arguments)
    assert plain.exit_code == 0, plain.output
    lines = plain.output.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert json.loads(CliRunner().invoke(ratrain, [*arguments, "--json"]).output)
