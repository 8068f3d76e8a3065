"""The account of the data that the run in force was trained on, from its first step.

In: the attempts of a lineage, their samples, the incidents. Out: an Account: samples seen once, again, never and out of
order, as far as the trainer reports them, the starts that did not go on with the data, and whether the account closes.
"""
