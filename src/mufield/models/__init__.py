"""Statistical models of the unknown motion, with their uncertainty."""
