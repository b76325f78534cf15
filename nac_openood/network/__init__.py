"""Running a user's network without changing it: which modules to read, and how."""
