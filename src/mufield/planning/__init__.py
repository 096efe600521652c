"""Planning: the best policy for a motion that is given."""
