"""Long computations as jobs: computed once, by any worker, and kept in a directory each."""
