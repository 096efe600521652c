"""The paper's figures and numbers, by one command. Reading order: budget, jobs, catalogue, work."""
