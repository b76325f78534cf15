"""The demo: images that come with installed libraries, and small networks trained on them."""
