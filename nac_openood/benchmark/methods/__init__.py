"""OOD detection methods: one table, and a file for each library that implements them."""
