"""Checkpoints in the layout their makers publish: read, written, counted.

`read_config` and `write_config` translate config.json, `load_official` reads a directory of sharded weights,
`export_official` writes one, `census` counts without allocating, `random_kimi_linear` and `random_k3` make small
complete directories for tests and benchmarks.
"""
