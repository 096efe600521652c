"""Learners and references compared: what each earns, from how many transitions, in what time."""
