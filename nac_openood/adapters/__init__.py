"""NAC behind interfaces that people already use; each file needs the library it is named after."""
