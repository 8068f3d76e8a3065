"""Grafana: the dashboards that sentinel brings along, and the HTTP API that takes them.

In: a Grafana's address and token, and the files of the dashboards. Out: pushes, differences, annotations.
"""
