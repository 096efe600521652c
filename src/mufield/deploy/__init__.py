"""Policies for use elsewhere: files for a reader that needs only NumPy."""
