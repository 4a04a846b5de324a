"""The measurement of loading, on a small checkpoint."""

from watersmeet.cli.bench_load import lines, measure
from watersmeet.core.official.random import random_kimi_linear


def test_loading_is_measured_beside_reading(tmp_path):
    random_kimi_linear(tmp_path)
    found = measure(tmp_path, rounds=1)
    assert found["files"] == sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    assert found["read_s"] > 0 and found["load_s"] > 0 and found["load_peak"] >= 0
    text = "\n".join(lines(found))
    assert "weights + one shard" in text and "load into float32" in text
