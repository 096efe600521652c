"""The command line: one file for each command or group of commands."""

from .program import main as main
