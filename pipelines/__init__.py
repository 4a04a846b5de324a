"""Built-in tasks, each a plugin, and what tasks share."""

if __name__ != "watersmeet.pipelines":
    raise ImportError(f"import this package as watersmeet.pipelines, not as {__name__!r}")
