"""One Chromium, offline: pages in, pictures and what the page really shows out."""
