"""What an attempt has loaded, and the steps that it makes again, against what the run had before.

In: a Start and its Ancestor. Out: checks, each confirmed, contradicted with the name of a fault, or silent.
"""
