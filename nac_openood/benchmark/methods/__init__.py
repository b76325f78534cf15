"""OOD detection methods: one table, and a folder for each library that implements them."""
