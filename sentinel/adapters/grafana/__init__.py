"""Grafana: the dashboards that sentinel brings along, and the HTTP API that takes them."""
