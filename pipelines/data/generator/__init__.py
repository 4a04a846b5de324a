"""Synthetic pages with the spread of real ones, each a pure function of a seed."""
