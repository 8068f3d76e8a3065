"""The records and formulas that trainer and daemon share. Pure, standard library only."""
