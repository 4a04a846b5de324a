"""Commands of `watersmeet`. Each module is imported when its command runs, never for `--help`."""
