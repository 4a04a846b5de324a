"""Videos as the patches that change, each with its place and its time."""
