"""Units read back what they wrote; presets load and carry their sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratrain.describe import units
from ratrain.describe.amounts import NOT_STATED
from ratrain.describe.huggingface import model_from_config
from ratrain.describe.presets import cluster_names, cluster_preset, model_names, model_preset
from ratrain.describe.tables import sources
from ratrain.errors import SpecError


def test_units_tell_bits_from_bytes_and_binary_from_decimal() -> None:
    assert units.parse_bytes("20GB") == 20 * 10**9
    assert units.parse_bytes("512 KiB") == 512 * 1024
    assert units.parse_bytes_rate("1Gbit/s") == units.parse_bytes_rate("1Gb/s") == 125e6
    assert units.parse_time("40us") == 40e-6
    assert units.parse_flops_rate("8.1TFLOP/s") == 8.1e12


@given(st.integers(0, 2**53))
def test_whole_bytes_round_trip(size: int) -> None:
    assert units.parse_bytes(f"{size}B") == size


@given(st.floats(1e-9, 1e6))
def test_a_formatted_time_reads_back_within_its_digits(time_s: float) -> None:
    assert units.parse_time(units.format_time(time_s)) == pytest.approx(time_s, rel=6e-3)


@given(st.floats(1, 1e17))
def test_a_formatted_rate_reads_back_within_its_digits(rate: float) -> None:
    assert units.parse_bytes_rate(units.format_bytes_rate(rate)) == pytest.approx(rate, rel=6e-3)


@pytest.mark.parametrize("wrong", ["20", "20gb/s", "GB", "1e999GB", "two GB", ""])
def test_a_wrong_size_says_how_to_write_it(wrong: str) -> None:
    with pytest.raises(SpecError) as caught:
        units.parse_bytes(wrong)
    assert "B" in caught.value.fix


@pytest.mark.parametrize("name", cluster_names())
def test_every_constant_of_a_cluster_has_a_source(name: str) -> None:
    cluster = cluster_preset(name)
    assert not {"", NOT_STATED} & {text.strip() for text in sources(cluster).values()}
    assert cluster.link(*cluster.devices(2)).bandwidth_bytes_per_s > 0


@pytest.mark.parametrize("name", model_names())
def test_every_model_preset_has_its_file_s_name_and_a_source(name: str) -> None:
    model = model_preset(name)
    assert model.name == name and model.source.strip()


def test_devices_communicate_over_the_innermost_level_they_share() -> None:
    cluster = cluster_preset("mixed-sites")
    devices = cluster.devices(72)
    assert cluster.level(devices[0], devices[7]) == "host"
    assert cluster.level(devices[8], devices[11]) == "chip"
    assert cluster.level(devices[8], devices[12]) == "room"
    assert cluster.level(devices[0], devices[8]) == "world"
    assert cluster.link(devices[0], devices[1]).bandwidth_bytes_per_s == 300e9
    assert cluster.link(devices[0], devices[8]).bandwidth_bytes_per_s == 125e6


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def test_a_hugging_face_config_gives_the_model() -> None:
    model = model_from_config(LLAMA)
    assert (model.head_dim, model.kv_heads, model.gated_mlp) == (128, 32, True)
    baichuan = {**LLAMA, "model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40}
    read = model_from_config({**baichuan, "vocab_size": 125696})
    assert (read.position, read.norm_head) == ("alibi", True)
    gpt = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}
    assert model_from_config(gpt).ffn == 3072


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "llma"}, "llama"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, 'write "hidden_size": 4096'),
        ({"num_attention_heads": 33}, "33 heads"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
    ],
)
def test_a_config_that_cannot_be_is_named(change: dict[str, object], word: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_from_config({**LLAMA, **change})
    assert word in str(caught.value)
