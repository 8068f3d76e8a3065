"""The dashboards as code: `python -m dashboards.build` writes the JSON beside this folder, `--check` compares it.

Needs `grafana-foundation-sdk`, which only [dev] has; whoever uses the dashboards needs the JSON alone.
"""
