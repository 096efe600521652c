"""The paper's figures, films and numbers: lists of jobs, and what is drawn from them."""
