"""Looking at a recording with plain code: what changed when and where, where the pointer was, what was to be read."""
