"""Prints this user's jobs of a Grid Engine as JSON lines of job, name and state, from `qstat -xml`: its table cuts
names to ten letters. Needs Python alone. An answer that is not whole or not understood is an error: exit code 1.

A job that has ended is listed for as long as the scheduler keeps it: `finished_jobs` of `qconf -sconf`.
"""

import json
import os
import pwd
import subprocess
import sys
from xml.etree import ElementTree

LETTERS = set("acdEhoPqrRsStTuwz")  # of a state, as qstat's man page has them


def state_of(letters: str) -> str:
    """Suspended jobs go on when someone says so: they are running. So is one that is being deleted or transferred."""
    if letters == "z":
        return "ended"
    return "pending" if "q" in letters else "running"


def main() -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    answers = [["-s", "prs"], ["-s", "z"]]
    for which in answers:
        command = ["qstat", "-xml", "-u", user, *which]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout
        root = ElementTree.fromstring(told)  # noqa: S314 - the scheduler's own
        if root.tag != "job_info":
            sys.exit(f"not qstat's answer: {told[:200]!r}")
        for job in root.iter("job_list"):
            number, name, letters = (job.findtext(key) for key in ("JB_job_number", "JB_name", "state"))
            if not number or not name or not letters or not set(letters) <= LETTERS:
                sys.exit(f"job {number} ({name}) is {letters!r}, which is not understood")
            print(json.dumps({"job": number, "name": name, "state": state_of(letters)}))


if __name__ == "__main__":
    main()
