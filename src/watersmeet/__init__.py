"""watersmeet: text, image patches and whatever a plugin brings become one stream of tokens, read by one transformer."""

__version__ = "0.1.0"
