"""Built-in modalities, each a plugin registered like any third party's."""

if __name__ != "watersmeet.tokenizers":
    raise ImportError(f"import this package as watersmeet.tokenizers, not as {__name__!r}")
