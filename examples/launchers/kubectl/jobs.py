"""Starts and lists JobSets or PyTorchJobs by kubectl. Needs Python and kubectl alone. Whatever kubectl does not answer,
or answers otherwise than its documentation says, is an error: exit code 1.

    jobs.py start KIND NAME     creates KIND.yaml, with ${SENTINEL_JOB} and the like filled in
    jobs.py list KIND           JSON lines of job, name and state
    jobs.py log KIND NAME       the last lines of each of its pods
"""

import json
import os
import re
import subprocess
import sys

RESOURCES = {  # kind: (resource, the label by which its pods name it, conditions that mean its end)
    "jobset": ("jobsets.jobset.x-k8s.io", "jobset.sigs.k8s.io/jobset-name", ("Completed", "Failed")),
    "pytorchjob": ("pytorchjobs.kubeflow.org", "training.kubeflow.org/job-name", ("Succeeded", "Failed")),
}


def kubectl(*words: str, stdin: str | None = None) -> str:
    command = ["kubectl", *words]
    ran = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    if ran.returncode != 0:
        sys.exit(ran.returncode)  # it has said why
    return ran.stdout


def items(*words: str) -> list[dict]:
    """The objects of a list. kubectl asks for all its parts; one that is not whole is no JSON."""
    answer = json.loads(kubectl("get", *words, "--output=json"))
    if answer["kind"] != "List" and not answer["kind"].endswith("List"):
        sys.exit(f"not a list: {answer['kind']}")
    return answer["items"]


def filled(manifest: str) -> str:
    """${SENTINEL_JOB} and the like, and W&B's, as YAML; the empty string where one is not set."""
    names = r"\$\{((?:SENTINEL|WANDB)_[A-Z_]+)\}"
    return re.sub(names, lambda found: json.dumps(os.environ.get(found[1], "")), manifest)


def start(kind: str, name: str) -> None:
    with open(f"{kind}.yaml", encoding="utf-8") as file:  # noqa: PTH123
        manifest = filled(file.read())
    if json.dumps(name) not in manifest:
        sys.exit(f"{kind}.yaml does not hold ${{SENTINEL_JOB}}, the name by which its job is found again")
    print(kubectl("create", "--filename=-", stdin=manifest))


def states(jobs: list[dict], pods: list[dict], label: str, ends: tuple[str, ...]) -> dict[str, str]:
    """Name -> state. A job has ended once it says so and no pod of it may still write; a pod whose job is gone is
    one that is being stopped."""
    found = {}
    living = {}  # job -> phases of its pods that have not ended
    for pod in pods:
        if pod["status"]["phase"] not in ("Succeeded", "Failed"):
            living.setdefault(pod["metadata"]["labels"][label], set()).add(pod["status"]["phase"])
    for job in jobs:
        name, conditions = job["metadata"]["name"], job.get("status", {}).get("conditions", [])
        over = [c["type"] for c in conditions if c["type"] in ends and c["status"] == "True"]
        if "deletionTimestamp" in job["metadata"] or (over and name in living):
            found[name] = "Terminating"
        elif over:
            found[name] = over[0]
        else:
            found[name] = "Pending" if living.get(name, {"Pending"}) == {"Pending"} else "Running"
    return {**dict.fromkeys(living, "Terminating"), **found}


def main() -> None:
    verb, kind, *words = sys.argv[1:]
    resource, label, ends = RESOURCES[kind]
    if verb == "start":
        start(kind, *words)
    elif verb == "log":
        print(kubectl("logs", f"--selector={label}={words[0]}", "--tail=200", "--prefix"))
    else:
        pods = items("pods", f"--selector={label}")  # first: a job that is created in between has none yet
        for name, state in states(items(resource), pods, label, ends).items():
            print(json.dumps({"job": name, "name": name, "state": state}))


if __name__ == "__main__":
    main()
