"""Rivals side by side: what each of them earns, from how many transitions, in what time."""
