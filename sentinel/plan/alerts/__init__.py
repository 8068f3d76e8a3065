"""What people are told: pages, alerts beside the incidents, and the incident log's events as sentences.

In: events of the incident log, and what the turns have found. Out: texts and marks as data; delivery is the adapters'.
"""
