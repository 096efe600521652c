"""A page to look at: runs as one HTML file, or live while they learn."""
