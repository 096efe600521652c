"""M3-UCRL: plan optimistically, act once, learn from it, repeat."""
