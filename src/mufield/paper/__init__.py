"""The paper's figures, films and numbers: the jobs that they need, and how they are drawn."""
