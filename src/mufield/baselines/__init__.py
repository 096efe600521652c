"""Rivals from the literature, to compare with; nothing else imports them."""
