"""The embedded benchmark: images that come with libraries, small networks, their training."""
