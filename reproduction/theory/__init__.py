"""The paper's theory as numbers: its constants, its bounds, and what a run realised beside them."""
