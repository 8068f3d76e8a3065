"""The run's chronicle: what broke, when, what led, what was tried under which hypothesis, what it cost, what helped."""
