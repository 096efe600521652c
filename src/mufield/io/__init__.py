"""Files: sealed containers, policies, and tables of observed episodes and logs."""
