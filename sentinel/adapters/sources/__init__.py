"""Other trainers' logs, as records of the vocabulary: read whole, or followed while they are written."""
