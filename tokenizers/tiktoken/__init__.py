"""The vocabulary of official checkpoints: byte-level ranks in `tiktoken.model` and named control slots after them."""
