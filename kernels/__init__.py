"""Operators: one folder each, a readable definition beside its fast forms."""

if __name__ != "watersmeet.kernels":
    raise ImportError(f"import this package as watersmeet.kernels, not as {__name__!r}")
