"""Pictures as patches of raw pixels."""
