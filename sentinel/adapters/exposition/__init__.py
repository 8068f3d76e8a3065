"""/metrics of the daemon: what it shows, where it listens, who is told, and the file for where nobody can ask.

In: metric families of the daemon's runs, and who may scrape them. Out: text in Prometheus' format, over HTTP or in a
file.
"""
