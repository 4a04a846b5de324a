"""Models a pipeline can ask: one loaded here, or one behind an OpenAI-compatible server."""
