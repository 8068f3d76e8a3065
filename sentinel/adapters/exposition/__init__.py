"""/metrics of the daemon: what it shows, where it listens, who is told, and the file for where nobody can ask."""
