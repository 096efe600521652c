"""Runs on disk: what a learner was told and what it planned, so that nothing is ever lost."""
