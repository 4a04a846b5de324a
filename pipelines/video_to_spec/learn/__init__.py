"""Teaching a model to write steps: what was seen in recordings of which everything is known, and what is to be said of it."""
