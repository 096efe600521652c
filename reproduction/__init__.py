"""The figures, films and numbers of the paper: `python -m reproduction` lists and computes them."""
