"""Conversations as official models read and write them: the K2 form, K3's XTML, and parsers of what comes back."""
