"""The report that every result carries: input and render side by side, scores, what did not fit."""
