"""Prints the jobs of a Ray cluster as JSON lines of job, name and state, from the dashboard's Jobs API. Needs Python
alone. RAY_AUTH_TOKEN, where it is set, is sent. An answer that is not whole, or not Ray's, is an error: exit code 1."""

import json
import os
import sys
import urllib.request

KNOWN = {"PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"}


def main(address: str) -> None:
    token = os.environ.get("RAY_AUTH_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{address.rstrip('/')}/api/jobs/", headers=headers)  # noqa: S310 - the operator's
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        jobs = json.load(answer)
    if not isinstance(jobs, list):
        sys.exit(f"not a list of jobs: {str(jobs)[:200]}")
    for job in jobs:
        if job["type"] == "SUBMISSION":  # the others were started by ray.init, and no one can stop them by the Jobs API
            name, state = job["submission_id"], job["status"]
            if state not in KNOWN:
                sys.exit(f"job {name} is {state!r}, which is no state of Ray Jobs")
            print(json.dumps({"job": name, "name": name, "state": state}))


if __name__ == "__main__":
    main(sys.argv[1])
