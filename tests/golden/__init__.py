"""Numbers that other software computed, and the memories that are held to them.

`python -m tests.golden` prints the table: a row a file of this folder.
"""
