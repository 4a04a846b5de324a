"""The plugin contract: hook specifications, specs, loader and registry."""

if __name__ != "watersmeet.plugins":
    raise ImportError(f"import this package as watersmeet.plugins, not as {__name__!r}")
