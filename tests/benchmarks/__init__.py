"""The benchmarks' own claims: peers, scores, documents."""
