"""Models a pipeline can ask: one loaded here, or one behind an OpenAI-compatible server."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watersmeet.pipelines.models.local import LocalModel
    from watersmeet.pipelines.models.remote import RemoteModel


def open_model(spec: str) -> "LocalModel | RemoteModel":
    """The model that `spec` names: "nano", a checkpoint folder, or openai:NAME@URL.

    Raises UsageError for a name of no known form and CheckpointError for a model that is not there or cannot be loaded.
    """
    # a remote model needs no torch, so neither is imported before it is known which one is meant
    if spec.startswith("openai:"):
        from watersmeet.pipelines.models.remote import parse_remote

        return parse_remote(spec)
    from watersmeet.pipelines.models.local import load_local

    return load_local(spec)
