"""The paper's analyses, one file per study; `table.py` lists them."""
