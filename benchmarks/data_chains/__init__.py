"""Parts of benchmarks/data_account.py: chains of resumes, drawn, and rebuilt from reported bugs."""
