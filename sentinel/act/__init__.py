"""The doing: performs plans, and the loop that watches."""
