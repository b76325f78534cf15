"""Data and networks by name, folder, list or checkpoint: what every command starts from."""
