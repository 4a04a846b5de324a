"""The layout tree: what a page is made of, between the picture and the code."""
