"""Recordings that are made: scripted use of pages in a browser, composed into frames with everything known of them."""
