"""What takes long is a job: computed once, by any worker, and kept in a directory of its own."""
