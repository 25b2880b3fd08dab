"""Models by the ids of the Hugging Face hub, where they were downloaded; nothing is fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratrain.cli.planning.models import model_of
from ratrain.describe.hub import model_folder
from ratrain.errors import SpecError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 260,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache as the hub's tools leave it, with two versions of a model."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--ada--small-1b"
    (model / "blobs").mkdir(parents=True)
    (model / "blobs" / "abc").write_text(json.dumps(CONFIG))
    for version in ("0123", "4567"):
        (model / "snapshots" / version).mkdir(parents=True)
        (model / "snapshots" / version / "config.json").symlink_to("../../blobs/abc")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("4567")
    return tmp_path


def test_an_id_means_the_latest_version_that_was_downloaded(hub: Path) -> None:
    found = hub / "models--ada--small-1b" / "snapshots" / "4567"
    assert model_folder("ada/small-1b") == found
    assert model_of("ada/small-1b").layers == 2


@pytest.mark.parametrize("variables", [{"HF_HOME": "home"}, {"XDG_CACHE_HOME": "cache"}, {}])
def test_the_cache_is_where_the_hub_s_own_tools_look(
    variables: dict[str, str], hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(hub / "user"))
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(hub / folder))
    general = {"HF_HOME": "home/hub", "XDG_CACHE_HOME": "cache/huggingface/hub"}
    place = hub / general.get(next(iter(variables), ""), "user/.cache/huggingface/hub")
    place.parent.mkdir(parents=True)
    place.symlink_to(hub)
    found = model_folder("ada/small-1b")
    assert found is not None and found.parents[2] == place


def test_what_was_not_downloaded_says_how_to(hub: Path) -> None:
    with pytest.raises(SpecError, match="neither a folder nor a model") as refused:
        model_folder("ada/other")
    assert "hf download ada/other" in refused.value.fix
    (hub / "models--ada--small-1b" / "snapshots" / "4567" / "config.json").unlink()
    with pytest.raises(SpecError, match="not complete"):
        model_folder("ada/small-1b")


def test_a_folder_of_that_name_comes_first_and_a_plain_word_is_a_preset(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hub)
    (hub / "ada" / "small-1b").mkdir(parents=True)
    assert model_folder("ada/small-1b") == Path("ada/small-1b")
    assert model_folder("qwen2.5-32b") is None
