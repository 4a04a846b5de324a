"""The transformer. `Model` is the public name; the other modules are its parts."""

from watersmeet.core.model.model import LossOutput, Model

__all__ = ["LossOutput", "Model"]
